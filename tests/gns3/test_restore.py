"""Backups come back: with their images, by name and date, and never half."""

import os
import secrets

import pytest

from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_images import MIB, an_image, qcow2

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def with_image(server: LabServer, name: str, image: str) -> str:
    """A project with a QEMU node that never ran; its id."""
    project_id = server.make_project(name, {"project-files/qemu/x/disk.qcow2": os.urandom(MIB)})
    server.add_qemu(project_id, "vm1", hda_disk_image=image)
    server.close(project_id)
    return project_id


def test_project_comes_back_with_its_images(operator: Operator, old: LabServer, new: LabServer) -> None:
    name, image = f"images {secrets.token_hex(3)}", an_image()
    md5 = old.upload_image(image, qcow2(MIB))
    project_id = with_image(old, name, image)
    operator.do("backup", name, "--server", "old", "--with-images")
    listed = {row["name"]: row for row in operator.json("ls", "--server", "old", "--exact")}
    assert (listed[name]["images_stored"], listed[name]["images_missing"], listed[name]["changed"]) == (
        1,
        0,
        "no",
    )
    restored = operator.json("restore", name, "--to", "new")[0]
    assert (restored["name"], restored["images"]) == (name, 1)
    assert new.images()[image] == md5
    assert new.projects()[name]["status"] == "closed"
    new.call("POST", f"/projects/{restored['project_id']}/open", {})
    nodes = new.call("GET", f"/projects/{restored['project_id']}/nodes")
    disks = [node["properties"]["hda_disk_image"] for node in nodes if node["node_type"] == "qemu"]
    assert disks == [image]
    new.close(restored["project_id"])
    again = operator.json("restore", project_id, "--to", "new", "--name", name)[0]
    assert (again["name"], again["images"]) == (f"{name}-1", 0)


def test_restored_project_is_started(operator: Operator, old: LabServer, new: LabServer) -> None:
    name = f"started {secrets.token_hex(3)}"
    old.make_project(name)
    operator.do("backup", name, "--server", "old")
    restored = operator.json("restore", name, "--to", "new", "--start")[0]
    nodes = new.call("GET", f"/projects/{restored['project_id']}/nodes")
    assert [node["status"] for node in nodes] == ["started", "started"]
    new.close(restored["project_id"])


def test_project_that_does_not_start_is_there_and_that_is_told(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, image = f"stuck {secrets.token_hex(3)}", an_image()
    old.upload_image(image, qcow2(MIB))
    with_image(old, name, image)  # there is no QEMU that would run it
    operator.do("backup", name, "--server", "old", "--with-images")
    code, _, err = operator.run("restore", name, "--to", "new", "--start")
    assert code == 5
    assert "was restored, but does not start" in err
    assert new.projects()[name]["status"] == "opened"
    new.call("DELETE", f"/projects/{new.projects()[name]['project_id']}")


def test_image_that_is_nowhere_is_told_before_anything_is_done(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, image = f"nowhere {secrets.token_hex(3)}", an_image()
    old.upload_image(image, qcow2(MIB))
    with_image(old, name, image)
    operator.do("backup", name, "--server", "old")
    before = new.projects()
    code, _, err = operator.run("restore", name, "--to", "new")
    assert code == 4
    assert image in err
    assert "images push" in err
    assert new.projects() == before
    code, _, err = operator.run("restore", name, "--to", "new", "--without-images")
    assert (code, image in err, new.projects()[name]["status"]) == (10, True, "closed")
    for options in ([], ["--to", "old"]):  # that server has the image
        code, out, err = operator.run("verify", name, *options)
        assert (code, out, image in err) == (4, "", True), err


def test_image_without_a_checksum_that_is_nowhere_leaves_the_project_closed(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, image = f"nameless {secrets.token_hex(3)}", an_image()
    md5 = old.upload_image(image, qcow2(MIB))
    path = old.projects_path / with_image(old, name, image) / f"{name}.gns3"
    path.write_text(path.read_text().replace(f'"{md5}"', "null").replace(image, "absent.qcow2"))
    operator.do("backup", name, "--server", "old")
    code, _, err = operator.run("restore", name, "--to", "new")
    assert (code, "absent.qcow2" in err, name in new.projects()) == (5, True, False), err
    code, _, err = operator.run("restore", name, "--to", "new", "--without-images")
    assert (code, "absent.qcow2" in err, new.projects()[name]["status"]) == (10, True, "closed"), err


def test_image_of_the_same_name_with_other_content_forbids_it(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, image = f"conflict {secrets.token_hex(3)}", an_image()
    old.upload_image(image, qcow2(MIB))
    mine = new.upload_image(image, qcow2(MIB))
    with_image(old, name, image)
    operator.do("backup", name, "--server", "old", "--with-images")
    before = new.projects()
    code, _, err = operator.run("restore", name, "--to", "new")
    assert code == 5
    assert "They were not changed" in err
    assert (new.projects(), new.images()[image]) == (before, mine)


def test_image_that_is_there_under_another_name_is_given_under_the_one_that_is_needed(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, image, other, content = f"twin {secrets.token_hex(3)}", an_image(), an_image(), qcow2(MIB)
    md5 = old.upload_image(image, content)
    new.upload_image(other, content)
    with_image(old, name, image)
    operator.do("backup", name, "--server", "old", "--with-images")
    operator.do("restore", name, "--to", "new")
    assert new.images()[image] == new.images()[other] == md5


def test_backup_is_named_by_its_date(operator: Operator, old: LabServer, new: LabServer) -> None:
    name = f"dated {secrets.token_hex(3)}"
    project_id = old.make_project(name, {"project-files/state": b"first"})
    first = operator.json("backup", name, "--server", "old")[0]["file_uuid"]
    moment = operator.store.get(f"/project-files/{first}").json["created_at"]
    old.write(project_id, "project-files/state", b"second")
    operator.do("backup", name, "--server", "old")
    restored = operator.json("restore", f"{name}@{moment}", "--to", "new")[0]
    assert restored["file_uuid"] == first
    assert new.files_of(restored["project_id"])["project-files/state"] == b"first"
    code, _, err = operator.run("restore", f"{name}@2020-01-01", "--to", "new")
    assert (code, "first backup" in err) == (4, True)
    code, _, err = operator.run("restore", "no such lab", "--to", "new")
    assert (code, "no backup of a project" in err) == (4, True)


def test_verify_restores_and_leaves_nothing(operator: Operator, old: LabServer, new: LabServer) -> None:
    name = f"verified {secrets.token_hex(3)}"
    old.make_project(name)
    operator.do("backup", name, "--server", "old")
    before = new.projects()
    assert "whole" in operator.do("verify", name)
    assert "restored and opened, 2 nodes" in operator.do("verify", name, "--to", "new")
    assert new.projects() == before


def test_truncated_export_is_refused_before_the_server_sees_it(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name = f"cut {secrets.token_hex(3)}"
    old.make_project(name, {"project-files/x": os.urandom(MIB)})
    file_uuid = operator.json("backup", name, "--server", "old")[0]["file_uuid"]
    whole = operator.store.request("GET", f"/files/{file_uuid}").body
    tag = operator.store.get(f"/project-files/{file_uuid}").json["version_tag"]
    cut = operator.store.store(whole[:-300], "cut.gns3project", project_name="cut", version_tag=tag)
    before = new.projects()
    code, _, err = operator.run("restore", cut, "--to", "new")
    assert code == 5
    assert "is not an export of a GNS3 project: damaged" in err
    assert new.projects() == before


def test_prune_keeps_what_the_rules_keep(operator: Operator, old: LabServer) -> None:
    name = f"pruned {secrets.token_hex(3)}"
    project_id = old.make_project(name)
    for state in range(4):
        old.write(project_id, "project-files/state", f"{state}".encode())
        operator.do("backup", name, "--server", "old")
    by_hand = operator.store.store(b"by hand", "hand.bin", project_id=project_id)
    assert len(operator.project_files(project_id=project_id)) == 5
    rows = operator.json("prune", name, "--keep-last", "2", "--keep-daily", "7", "--dry-run")
    assert [row["kept_by"] for row in rows] == [[], [], ["last"], ["last", "daily"]]
    assert len(operator.project_files(project_id=project_id)) == 5
    operator.do("prune", name, "--keep-last", "2")
    left = [file["file_uuid"] for file in operator.project_files(project_id=project_id)]
    assert left == [rows[2]["file_uuid"], rows[3]["file_uuid"], by_hand]
    assert operator.run("prune", name)[0] == 2
