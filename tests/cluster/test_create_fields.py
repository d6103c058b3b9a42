"""Every field of a create request, wrong in every way: 400 that names the field, and nothing is stored."""

from typing import Any

import pytest

from tests.cluster.harness import Cluster

GOOD: dict[str, Any] = {"filename": "lab.gns3p", "project_id": "fields"}
STRINGS = (
    "bucket_id",
    "compression",
    "content_type",
    "filename",
    "project_id",
    "project_name",
    "version_tag",
    "blob_sha256",
)
BOOLEANS = (
    "include_images",
    "include_snapshots",
    "is_read_only",
    "keep_compute_ids",
    "reset_mac_addresses",
)
INTEGERS = ("retention_period", "size_bytes")

WRONG_STRINGS: list[Any] = [5, True, [], {}, 1.5]
WRONG_BOOLEANS: list[Any] = ["true", 1, 0, [], {}]
WRONG_INTEGERS: list[Any] = ["5", True, 1.5, [], {}, -1, 1 << 63, 1e30]
WRONG: list[tuple[str, Any]] = [
    *((name, value) for name in STRINGS for value in WRONG_STRINGS),
    *((name, value) for name in BOOLEANS for value in WRONG_BOOLEANS),
    *((name, value) for name in INTEGERS for value in WRONG_INTEGERS),
    ("size_bytes", 1 << 53),
    ("retention_period", 876_001),
    ("compression", "gzip"),
    ("compression", "ZSTD"),
    ("bucket_id", "not-a-uuid"),
    ("bucket_id", "0192f0c1-2345-7abc-8def-0123456789ab"),
    ("filename", ""),
    ("filename", "a/b"),
    ("filename", "a\nb"),
    ("filename", "a\x00b"),
    ("filename", "x" * 256),
    ("filename", None),
    ("project_id", ""),
    ("project_id", None),
    ("blob_sha256", "abc"),
    ("blob_sha256", "Z" * 64),
    ("surprise", 1),
    ("owner_id", "me"),
    ("file_uuid", "0192f0c1-2345-7abc-8def-0123456789ab"),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_wrong_field_is_named(cluster: Cluster, field: str, value: Any) -> None:
    answer = cluster.post("/project-files", GOOD | {field: value})
    assert (answer.status, answer.json["code"]) == (400, "invalid_request"), answer.body
    assert field in answer.json["details"]
    assert set(answer.json) == {"code", "error", "details"}


@pytest.mark.parametrize("field", ["filename", "project_id"])
def test_missing_field_is_named(cluster: Cluster, field: str) -> None:
    answer = cluster.post("/project-files", {name: value for name, value in GOOD.items() if name != field})
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert field in answer.json["details"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"filename": "a", "filename": "b", "project_id": "c"}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_malformed_body_is_refused(cluster: Cluster, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = cluster.request("POST", "/project-files", content=content, headers=headers)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")


def test_nothing_of_all_this_was_stored(cluster: Cluster) -> None:
    assert cluster.get("/project-files?project_id=fields").json == {"count": 0, "project_files": []}


def test_optional_fields_may_be_null_or_empty(cluster: Cluster) -> None:
    optional = ("bucket_id", "compression", "content_type", "project_name", "version_tag", "blob_sha256")
    for value in (None, ""):
        cluster.create(**dict.fromkeys(optional, value), project_id="optional")
    cluster.create(project_id="optional", retention_period=None, size_bytes=None)
