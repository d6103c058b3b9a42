"""A backup that the store has lost is never called whole, and takes the place of none that is whole."""

import os
import secrets
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.blobs_on_disk import change_byte_on
from tests.cluster.harness import Cluster
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_images import MIB, an_image, qcow2
from tests.gns3.test_restore import with_image

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
STATE = "project-files/state"


def damage(store: Cluster, sha256: str, offset: int) -> None:
    """The same byte is wrong in every replica, of which the cluster does not know yet."""
    store.wait_everywhere(sha256)
    for node in store.nodes:
        change_byte_on(store.data(node), sha256, offset)


def wait_noticed(store: Cluster, sha256: str) -> None:
    def is_listed() -> bool:
        contents = store.get("/cluster/damaged").json["contents"]
        return sha256 in [each["sha256"] for each in contents if each["lost_bytes"]]

    wait_until(is_listed, what="the damage", timeout_s=90)


def oldest_good_at(directory: Path) -> float:
    [file] = directory.glob("filestore_gns3_*.prom")
    [line] = [
        row for row in file.read_text().splitlines() if row.startswith("filestore_gns3_oldest_good_backup")
    ]
    return float(line.rpartition(" ")[2])


def remove_projects(old: LabServer) -> None:
    """Those of other tests."""
    for project in old.projects().values():
        old.call("DELETE", f"/projects/{project['project_id']}")


def test_damaged_backup_is_told_stored_anew_and_never_counts(
    operator: Operator, old: LabServer, new: LabServer, tmp_path: Path
) -> None:
    remove_projects(old)
    name = f"damaged {secrets.token_hex(3)}"
    project_id = old.make_project(name, {STATE: b"1", "project-files/disk": os.urandom(4 * MIB)})
    uuids = []
    for state in (b"1", b"2", b"3"):
        old.write(project_id, STATE, state)
        [row] = operator.json("backup", name, "--server", "old", "--metrics", str(tmp_path))
        uuids.append(row["file_uuid"])
    oldest, sound, lost = uuids
    good_at = oldest_good_at(tmp_path)
    sha256 = operator.store.get(f"/project-files/{lost}").json["blob_sha256"]
    damage(operator.store, sha256, 2 * MIB)

    code, _, err = operator.run("verify", name, "--read-data")
    assert (code, "is damaged" in err) == (5, True), err
    wait_noticed(operator.store, sha256)
    code, out, err = operator.run("verify", name)
    assert (code, out, "is damaged" in err, sound in err) == (5, "", True, True), err
    code, _, err = operator.run("verify", name, "--to", "new")
    assert (code, "is damaged" in err) == (5, True), err
    code, _, err = operator.run("restore", name, "--to", "new")
    assert (code, "is damaged" in err, sound in err) == (5, True, True), err
    [listed] = [row for row in operator.json("ls", "--server", "old") if row["name"] == name]
    assert (listed["file_uuid"], listed["changed"]) == (lost, "damaged")

    rows = operator.json("prune", name, "--keep-last", "1", codes=[10])
    kept = {row["file_uuid"]: row["kept_by"] for row in rows}
    assert kept == {oldest: [], sound: ["last"], lost: ["damaged"]}

    old.start_nodes(project_id)
    metrics = ("--metrics", str(tmp_path))
    assert operator.backup(name, "--server", "old", *metrics, codes=[5]) == {name: "running"}
    assert oldest_good_at(tmp_path) < good_at
    old.close(project_id)
    [row] = operator.json("backup", name, "--server", "old", *metrics)
    assert row["status"] == "stored"
    assert oldest_good_at(tmp_path) > good_at
    assert operator.backup(name, "--server", "old") == {name: "unchanged"}
    operator.do("verify", name, "--read-data")
    rows = operator.json("prune", name, "--keep-last", "1")
    assert [each["file_uuid"] for each in rows if not each["deleted"]] == [row["file_uuid"]]
    assert operator.json("restore", name, "--to", "new")[0]["file_uuid"] == row["file_uuid"]


@pytest.mark.parametrize(
    "command", [("verify", "--read-data"), ("verify", "--to", "new"), ("restore", "--to", "new")]
)
def test_damage_that_a_command_finds_itself_is_reported_with_the_newest_whole_backup(
    operator: Operator, old: LabServer, new: LabServer, command: tuple[str, ...]
) -> None:
    name = f"unnoticed {secrets.token_hex(3)}"
    project_id = old.make_project(name, {STATE: b"1", "project-files/disk": os.urandom(4 * MIB)})
    sound = operator.json("backup", name, "--server", "old")[0]["file_uuid"]
    old.write(project_id, STATE, b"2")
    lost = operator.json("backup", name, "--server", "old")[0]["file_uuid"]
    sha256 = operator.store.get(f"/project-files/{lost}").json["blob_sha256"]
    damage(operator.store, sha256, 2 * MIB)
    before = {*new.projects()}
    code, out, err = operator.run(command[0], name, *command[1:], "--deadline", "5")
    assert (code, out, f"The newest complete one is {sound}" in err) == (5, "", True), err
    assert {*new.projects()} == before


def test_damaged_image_is_told_and_stored_anew(operator: Operator, old: LabServer) -> None:
    name, image = f"image {secrets.token_hex(3)}", an_image()
    md5 = old.upload_image(image, qcow2(4 * MIB))
    with_image(old, name, image)
    operator.do("backup", name, "--server", "old", "--with-images")
    [stored] = operator.store.get(f"/vms?md5={md5}").json["vms"]
    damage(operator.store, stored["blob_sha256"], 2 * MIB)
    code, _, err = operator.run("verify", name, "--read-data")
    assert (code, image in err) == (5, True), err
    wait_noticed(operator.store, stored["blob_sha256"])
    code, _, err = operator.run("verify", name)
    assert (code, image in err, "is damaged" in err) == (5, True, True), err
    [row] = operator.json("backup", name, "--server", "old", "--with-images")
    assert (row["status"], row["images"]) == ("unchanged", 1)
    operator.do("verify", name, "--read-data")
