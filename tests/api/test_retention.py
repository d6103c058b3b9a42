"""How long a file stays, over HTTP: said at creation, shown, changed and removed."""

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.api.expectations import DEFAULT_BUCKET, KINDS, check_refused, create, grant, person, store
from tests.cluster.harness import Cluster

every_kind = pytest.mark.parametrize("kind", KINDS)


def hours_until(moment: str) -> float:
    return (datetime.fromisoformat(moment) - datetime.now(UTC)) / timedelta(hours=1)


@every_kind
def test_end_is_shown_in_every_record(cluster: Cluster, kind: str) -> None:
    kept, ends = create(cluster, kind), create(cluster, kind, retention_period=5)
    record = cluster.get(f"{kind}/{kept['file_uuid']}").json
    assert (record["expires_at"], "retention_period" in record) == ("", False)
    path = f"{kind}/{ends['file_uuid']}"
    record = cluster.get(path).json
    assert (record["expires_at"], record["retention_period"]) == ("", 5)  # not known until it is available
    assert cluster.request("PUT", ends["upload_url"], content=b"x").status == 200
    record = cluster.get(path).json
    assert 4.9 < hours_until(record["expires_at"]) <= 5
    listed = cluster.get(f"/buckets/{DEFAULT_BUCKET}/files?filename={record['filename']}").json["files"]
    assert record["expires_at"] in [file["expires_at"] for file in listed]


@every_kind
def test_end_is_told_with_the_content(cluster: Cluster, kind: str) -> None:
    file_uuid = store(cluster, kind, b"content", retention_period=5)
    link = cluster.post(f"/files/{file_uuid}/public-token").json
    cluster.remember(link["token"])
    expires_at = datetime.fromisoformat(cluster.get(f"{kind}/{file_uuid}").json["expires_at"])
    for path, token in ((f"/files/{file_uuid}", ""), (link["url"], None)):
        for method, headers in (("HEAD", {}), ("GET", {}), ("GET", {"Range": "bytes=0-1"})):
            answer = cluster.request(method, path, token=token, headers=headers)
            sunset = parsedate_to_datetime(answer.headers["sunset"])
            assert sunset == expires_at.replace(microsecond=0)


def test_content_that_stays_has_no_end(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/vms", b"content")
    for method in ("GET", "HEAD", "GET"):
        assert "sunset" not in cluster.request(method, f"/files/{file_uuid}").headers


@every_kind
def test_retention_is_changed_and_removed(cluster: Cluster, kind: str) -> None:
    file_uuid = store(cluster, kind, b"content")
    path = f"{kind}/{file_uuid}"

    def change(body: dict[str, Any]) -> dict[str, Any]:
        answer = cluster.request("PATCH", path, body=body)
        assert answer.status == 200, answer.body
        assert cluster.get(path).json == answer.json
        found: dict[str, Any] = answer.json
        return found

    for node in cluster.nodes:  # which may keep what they have learnt
        for _ in range(3):
            assert "sunset" not in cluster.get(f"/files/{file_uuid}", node=node).headers
    changed = change({"retention_period": 7})
    assert changed["retention_period"] == 7
    assert 6.9 < hours_until(changed["expires_at"]) <= 7
    for node in cluster.nodes:
        assert "sunset" in cluster.get(f"/files/{file_uuid}", node=node).headers
    for nothing in ({}, {"retention_period": ""}):
        assert change(nothing)["expires_at"] == changed["expires_at"]
    removed = change({"retention_period": None})
    assert (removed["expires_at"], "retention_period" in removed) == ("", False)
    for node in cluster.nodes:
        assert "sunset" not in cluster.get(f"/files/{file_uuid}", node=node).headers


def test_changing_retention_needs_write(cluster: Cluster) -> None:
    owner, reader = person(cluster), person(cluster)
    file_uuid = create(cluster, "/vms", owner.token)["file_uuid"]
    grant(cluster, f"/files/{file_uuid}", "read", reader.id, token=owner.token)
    body = {"retention_period": 1}
    check_refused(cluster.request("PATCH", f"/vms/{file_uuid}", body=body, token=reader.token), "forbidden")


def test_command_refuses_a_retention_of_nothing(cluster: Cluster) -> None:
    done = cluster.filestore("put", "--retention", "0", __file__)
    assert done.returncode == 2
    assert b"1 to 876000" in done.stderr
