"""Project files over HTTP: the metadata of an export, and finding files by their project."""

from typing import Any

from tests.api.expectations import (
    PROJECT_FILE,
    check_refused,
    check_shape,
    create,
    grant,
    pages,
    person,
    store,
    unique,
)
from tests.cluster.harness import Cluster

PATH = "/project-files"
FLAGS = ("include_images", "include_snapshots", "is_read_only", "keep_compute_ids", "reset_mac_addresses")
CHANGEABLE: dict[str, Any] = {
    "project_name": "ospf läb",
    "version_tag": "v2",
    "compression": "zstd",
    **dict.fromkeys(FLAGS, True),
}
GIVEN = CHANGEABLE | {"project_id": "0F8AC31C"}


def test_record_has_the_promised_fields_and_what_was_given(cluster: Cluster) -> None:
    file_uuid = create(cluster, PATH, **GIVEN)["file_uuid"]
    record = cluster.get(f"{PATH}/{file_uuid}").json
    check_shape(record, PROJECT_FILE)
    assert {name: record[name] for name in GIVEN} == GIVEN


def test_defaults(cluster: Cluster) -> None:
    record = cluster.get(f"{PATH}/{create(cluster, PATH)['file_uuid']}").json
    assert (record["project_name"], record["version_tag"], record["compression"]) == ("", "", "none")
    assert not any(record[flag] for flag in FLAGS)


def test_update_changes_what_it_names_and_nothing_else(cluster: Cluster) -> None:
    file_uuid = create(cluster, PATH)["file_uuid"]
    before = cluster.get(f"{PATH}/{file_uuid}").json
    for field, value in CHANGEABLE.items():
        answer = cluster.request("PATCH", f"{PATH}/{file_uuid}", body={field: value})
        assert answer.status == 200
        before |= {field: value, "updated_at": answer.json["updated_at"]}
        assert answer.json == before
    for nothing in ({}, dict.fromkeys(CHANGEABLE), dict.fromkeys(CHANGEABLE, "")):
        answer = cluster.request("PATCH", f"{PATH}/{file_uuid}", body=nothing)
        assert {name: answer.json[name] for name in CHANGEABLE} == CHANGEABLE
    answer = cluster.request("PATCH", f"{PATH}/{file_uuid}", body=dict.fromkeys(FLAGS, False))
    assert not any(answer.json[flag] for flag in FLAGS)
    assert cluster.get(f"{PATH}/{file_uuid}").json == answer.json


def test_update_needs_write(cluster: Cluster) -> None:
    owner, other = person(cluster), person(cluster)
    file_uuid = create(cluster, PATH, owner.token)["file_uuid"]
    place, body = f"{PATH}/{file_uuid}", {"version_tag": "v3"}
    grant(cluster, f"/files/{file_uuid}", "read", other.id, token=owner.token)
    assert cluster.get(place, token=other.token).status == 200
    check_refused(cluster.request("PATCH", place, body=body, token=other.token), "forbidden")
    grant(cluster, f"/files/{file_uuid}", "write", other.id, token=owner.token)
    assert cluster.request("PATCH", place, body=body, token=other.token).json["version_tag"] == "v3"


def test_list_is_narrowed_by_project_after_access_control(cluster: Cluster) -> None:
    owner, project = person(cluster), unique("project & lab")
    mine = [create(cluster, PATH, owner.token, project_id=project)["file_uuid"] for _ in range(3)]
    create(cluster, PATH, owner.token, project_id="another")
    theirs = create(cluster, PATH, person(cluster).token, project_id=project)["file_uuid"]
    narrowed = f"{PATH}?project_id={project.replace(' ', '%20').replace('&', '%26')}"
    for limit in (1, 2, 3, 4):
        found = pages(cluster, narrowed, "project_files", limit=limit, token=owner.token)
        assert [record["file_uuid"] for record in found] == mine
        check_shape(found[0], PROJECT_FILE)
    everybodys = cluster.get(narrowed).json["project_files"]
    assert [record["file_uuid"] for record in everybodys] == [*mine, theirs]
    assert cluster.get(f"{PATH}?project_id=none", token=owner.token).json == {"count": 0, "project_files": []}


def test_manifest_needs_read_and_a_finished_upload(cluster: Cluster) -> None:
    owner = person(cluster)
    pending = create(cluster, PATH, owner.token)["file_uuid"]
    check_refused(cluster.get(f"{PATH}/{pending}/manifest", token=owner.token), "not_available")
    stored = store(cluster, PATH, b"no archive at all", owner.token)
    answer = cluster.get(f"{PATH}/{stored}/manifest", token=owner.token)
    assert answer.json == {
        "file_uuid": stored,
        "archive": "other",
        "project_name": "",
        "format_version": "",
        "images": [],
        "truncated": False,
    }
    check_refused(cluster.get(f"{PATH}/{stored}/manifest", token=person(cluster).token), "forbidden")
