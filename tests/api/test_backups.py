"""Backups over HTTP: their metadata and their lineage."""

from typing import Any

from tests.api.expectations import (
    BACKUP,
    KINDS,
    NOBODY,
    check_refused,
    check_shape,
    create,
    grant,
    person,
)
from tests.cluster.harness import Answer, Cluster


def incremental(cluster: Cluster, parent: str, token: str = "") -> str:
    fields: dict[str, Any] = {"backup_type": "incremental", "parent_backup_uuid": parent}
    return str(create(cluster, "/backups", token, **fields)["file_uuid"])


def patched(cluster: Cluster, file_uuid: str, token: str = "", **fields: Any) -> Answer:
    return cluster.request("PATCH", f"/backups/{file_uuid}", body=fields, token=token)


def test_record_has_the_promised_fields_and_what_was_given(cluster: Cluster) -> None:
    given: dict[str, Any] = {
        "is_compressed": True,
        "is_encrypted": True,
        "source_node_id": "gns3 server, rack 1",
    }
    record = cluster.get(f"/backups/{create(cluster, '/backups', **given)['file_uuid']}").json
    check_shape(record, BACKUP)
    assert record["backup_type"] == "full"
    assert record["parent_backup_uuid"] == ""
    assert {name: record[name] for name in given} == given


def test_defaults(cluster: Cluster) -> None:
    record = cluster.get(f"/backups/{create(cluster, '/backups')['file_uuid']}").json
    assert (record["is_compressed"], record["is_encrypted"], record["source_node_id"]) == (False, False, "")


def test_update_changes_what_it_names_and_nothing_else(cluster: Cluster) -> None:
    parent, file_uuid = (create(cluster, "/backups")["file_uuid"] for _ in range(2))
    known = cluster.get(f"/backups/{file_uuid}").json
    changes: list[dict[str, Any]] = [
        {"is_compressed": True},
        {"is_encrypted": True},
        {"source_node_id": "n 1"},
        {"backup_type": "incremental", "parent_backup_uuid": parent},
        {"is_compressed": False},
    ]
    for change in changes:
        answer = patched(cluster, file_uuid, **change)
        assert answer.status == 200, answer.body
        known |= change | {"updated_at": answer.json["updated_at"]}
        assert answer.json == known
    answer = patched(cluster, file_uuid, is_encrypted=None, source_node_id="", parent_backup_uuid="")
    assert answer.json == known | {"updated_at": answer.json["updated_at"]}


def test_incremental_backup_names_its_parent(cluster: Cluster) -> None:
    owner = person(cluster)
    parent = create(cluster, "/backups", owner.token)["file_uuid"]
    child = incremental(cluster, parent.upper(), owner.token)
    record = cluster.get(f"/backups/{child}", token=owner.token).json
    assert (record["backup_type"], record["parent_backup_uuid"]) == ("incremental", parent)


def test_parent_must_be_a_backup_that_exists(cluster: Cluster) -> None:
    project = create(cluster, "/project-files")["file_uuid"]
    for parent in (NOBODY, project, None, ""):
        body = KINDS["/backups"] | {"backup_type": "incremental", "parent_backup_uuid": parent}
        check_refused(cluster.post("/backups", body), "invalid_request", "parent_backup_uuid")
    full = KINDS["/backups"] | {"parent_backup_uuid": create(cluster, "/backups")["file_uuid"]}
    check_refused(cluster.post("/backups", full), "invalid_request", "parent_backup_uuid")


def test_parent_must_be_readable(cluster: Cluster) -> None:
    owner, other = person(cluster), person(cluster)
    parent = create(cluster, "/backups", owner.token)["file_uuid"]
    own = create(cluster, "/backups", other.token)["file_uuid"]
    change = {"backup_type": "incremental", "parent_backup_uuid": parent}
    check_refused(cluster.post("/backups", KINDS["/backups"] | change, token=other.token), "forbidden")
    check_refused(patched(cluster, own, other.token, **change), "forbidden")
    grant(cluster, f"/files/{parent}", "read", other.id, token=owner.token)
    assert incremental(cluster, parent, other.token)
    assert patched(cluster, own, other.token, **change).status == 200


def test_change_of_type_keeps_the_lineage_sound(cluster: Cluster) -> None:
    parent = create(cluster, "/backups")["file_uuid"]
    child = incremental(cluster, parent)
    field = "parent_backup_uuid"
    check_refused(patched(cluster, parent, backup_type="incremental"), "invalid_request", field)
    check_refused(patched(cluster, parent, parent_backup_uuid=child), "invalid_request", field)
    answer = patched(cluster, child, backup_type="full")
    assert (answer.json["backup_type"], answer.json[field]) == ("full", "")


def test_chain_may_not_loop(cluster: Cluster) -> None:
    first = create(cluster, "/backups")["file_uuid"]
    second = incremental(cluster, first)
    third = incremental(cluster, second)
    for ancestor, descendant in ((first, first), (first, third), (second, third)):
        change = {"backup_type": "incremental", "parent_backup_uuid": descendant}
        check_refused(patched(cluster, ancestor, **change), "invalid_request", "parent_backup_uuid")
    assert cluster.get(f"/backups/{first}").json["parent_backup_uuid"] == ""


def test_backup_that_others_build_on_stays(cluster: Cluster) -> None:
    parent = create(cluster, "/backups")["file_uuid"]
    child = incremental(cluster, parent)
    for path in (f"/backups/{parent}", f"/files/{parent}", f"/files/{parent}/content"):
        headers = {"Tus-Resumable": "1.0.0"}
        check_refused(cluster.request("DELETE", path, headers=headers), "conflict")
    assert cluster.request("DELETE", f"/backups/{child}").status == 200
    assert cluster.request("DELETE", f"/backups/{parent}").json["status"] == "deleted"
