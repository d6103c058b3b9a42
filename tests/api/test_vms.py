"""VM images over HTTP: their metadata, and finding them by content."""

import hashlib
from typing import Any

import pytest

from tests.api.expectations import (
    VM,
    VM_EXTENDED,
    check_refused,
    check_shape,
    create,
    grant,
    person,
    store,
)
from tests.cluster.harness import Cluster

GIVEN: dict[str, Any] = {
    "virt_type": "iou",
    "format": "a.b-c_1",
    "vcpus": 1024,
    "ram_mb": 2**24,
    "extra_attributes_json": '{ "b": [1, {"a": null}], "b": 2.50 }',
}


def test_record_has_the_promised_fields_and_what_was_given(cluster: Cluster) -> None:
    assert set(VM_EXTENDED) - set(VM) == {"md5"}
    file_uuid = create(cluster, "/vms", **GIVEN)["file_uuid"]
    record = cluster.get(f"/vms/{file_uuid}").json
    check_shape(record, VM_EXTENDED)
    assert {name: record[name] for name in GIVEN} == GIVEN
    assert (record["filename"], record["md5"]) == ("disk.qcow2", "")


def test_defaults(cluster: Cluster) -> None:
    record = cluster.get(f"/vms/{create(cluster, '/vms')['file_uuid']}").json
    assert (record["vcpus"], record["ram_mb"], record["extra_attributes_json"]) == (1, 512, "")


def test_update_changes_what_it_names_and_nothing_else(cluster: Cluster) -> None:
    file_uuid = create(cluster, "/vms")["file_uuid"]
    before = cluster.get(f"/vms/{file_uuid}").json
    for field, value in GIVEN.items():
        answer = cluster.request("PATCH", f"/vms/{file_uuid}", body={field: value})
        assert answer.status == 200
        before |= {field: value, "updated_at": answer.json["updated_at"]}
        assert answer.json == before
    for nothing in ({}, dict.fromkeys(GIVEN), dict.fromkeys(GIVEN, "")):
        answer = cluster.request("PATCH", f"/vms/{file_uuid}", body=nothing)
        assert {name: answer.json[name] for name in GIVEN} == GIVEN
    assert cluster.get(f"/vms/{file_uuid}").json == answer.json


def test_update_needs_write(cluster: Cluster) -> None:
    owner, other = person(cluster), person(cluster)
    file_uuid = create(cluster, "/vms", owner.token)["file_uuid"]
    grant(cluster, f"/files/{file_uuid}", "read", other.id, token=owner.token)
    assert cluster.get(f"/vms/{file_uuid}", token=other.token).status == 200
    answer = cluster.request("PATCH", f"/vms/{file_uuid}", body={"vcpus": 2}, token=other.token)
    check_refused(answer, "forbidden")


def test_image_is_found_by_the_md5_of_its_content(cluster: Cluster) -> None:
    owner = person(cluster)
    content = b"an image of " + owner.id.encode()
    digest = hashlib.md5(content).hexdigest()
    stored = [store(cluster, "/vms", content, owner.token) for _ in range(2)]
    store(cluster, "/vms", b"another", owner.token)
    for asked in (digest, digest.upper()):
        answer = cluster.get(f"/vms?md5={asked}", token=owner.token)
        assert [record["file_uuid"] for record in answer.json["vms"]] == stored
    assert answer.json["vms"][0]["md5"] == digest
    assert cluster.get(f"/vms?md5={digest}").json["count"] == 2
    assert cluster.get(f"/vms?md5={digest}", token=person(cluster).token).json["count"] == 0
    page = cluster.get(f"/vms?md5={digest}&limit=1", token=owner.token)
    assert f"md5={digest}" in page.headers["link"]
    rest = cluster.get(page.headers["link"].split(">")[0][1:], token=owner.token)
    assert [record["file_uuid"] for record in rest.json["vms"]] == stored[1:]


@pytest.mark.parametrize("digest", ["x", "0" * 31, "g" * 32])
def test_malformed_md5_is_refused(cluster: Cluster, digest: str) -> None:
    check_refused(cluster.get(f"/vms?md5={digest}"), "invalid_request", "md5")
