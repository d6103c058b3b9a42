"""A backup belongs to its owner and its server, whatever ids and names another one has."""

import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from deploy.gns3.logins import network_cards
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_images import MIB, an_image, qcow2
from tests.gns3.test_restore import with_image

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
STATE = "project-files/state"


def clone_project(project_id: str, source: LabServer, target: LabServer) -> None:
    """The same project with the same id on another server, as on a machine that was cloned."""
    status, export = source.request("GET", f"/projects/{project_id}/export?compression=zstd")
    assert status == 200
    target.call("POST", f"/projects/{project_id}/import", content=export)


def store_copy(operator: Operator, file_uuid: str, *, owner: str, tag: str = "") -> str:
    """A stranger stores the same archive under the same names, and a well-formed tag."""
    record = operator.store.get(f"/project-files/{file_uuid}").json
    content = operator.store.request("GET", f"/files/{file_uuid}").body
    return operator.store.store(
        content,
        record["filename"],
        token=operator.store.user_token(owner),
        project_id=record["project_id"],
        project_name=record["project_name"],
        version_tag=tag or record["version_tag"],
    )


def test_two_servers_with_one_project_id_have_a_chain_each(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name = f"cloned {secrets.token_hex(3)}"
    project_id = old.make_project(name, {STATE: b"of old"})
    clone_project(project_id, old, new)
    new.write(project_id, STATE, b"of new")
    ids = {row["name"]: row["server_id"] for row in operator.json("servers")}
    assert ids["old"] != ids["new"]

    stored: dict[str, str] = {}
    for server in ("old", "new"):
        [row] = operator.json("backup", project_id, "--server", server)
        assert row["status"] == "stored"
        stored[server] = row["file_uuid"]
    for server in ("old", "new"):
        assert operator.backup(project_id, "--server", server) == {name: "unchanged"}
        [listed] = [row for row in operator.json("ls", "--server", server) if row["name"] == name]
        assert (listed["file_uuid"], listed["backups"]) == (stored[server], 1)
        assert listed["server_id"] == ids[server]

    verified = operator.json("verify", project_id)
    assert {row["server"]: row["file_uuid"] for row in verified} == stored
    assert {row["server_id"] for row in verified} == set(ids.values())
    rows = operator.json("prune", name, "--keep-last", "1")
    assert {row["server"]: row["deleted"] for row in rows} == {"old": False, "new": False}

    for named in (name, project_id):
        code, _, err = operator.run("restore", named, "--to", "new")
        assert (code, "--from" in err, ids["old"] in err, ids["new"] in err) == (5, True, True, True)
    for source, server in (("old", "old"), (ids["new"], "new")):
        restored = operator.json("restore", name, "--to", "new", "--from", source)[0]
        assert restored["from_server_id"] == ids[server]
        assert new.files_of(restored["project_id"])[STATE] == f"of {server}".encode()
    assert f"of server old ({ids['old']})" in operator.do("restore", name, "--to", "new", "--from", "old")


def test_backup_whose_tag_was_changed_is_an_ordinary_file(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name = f"tagged {secrets.token_hex(3)}"
    project_id = old.make_project(name, {STATE: b"1"})
    [row] = operator.json("backup", name, "--server", "old")
    path = f"/project-files/{row['file_uuid']}"
    content_alone = operator.store.get(path).json["version_tag"].partition("@")[0]
    for tag in ("mine", content_alone):
        answer = operator.store.request("PATCH", path, body={"version_tag": tag})
        assert answer.status == 200, answer.body
        [listed] = [each for each in operator.json("ls", "--server", "old") if each["name"] == name]
        assert (listed["file_uuid"], listed["backups"]) == ("", 0)
        assert operator.run("restore", project_id, "--to", "new")[0] == 4
        assert operator.json("restore", row["file_uuid"], "--to", "new")[0]["from_server_id"] == ""
    assert operator.backup(name, "--server", "old") == {name: "stored"}
    rows = operator.json("prune", name, "--keep-last", "1")
    assert row["file_uuid"] not in [each["file_uuid"] for each in rows]


def test_server_that_moved_goes_on_with_its_backups_if_it_is_told_so(
    operator: Operator, old: LabServer
) -> None:
    name = f"moved {secrets.token_hex(3)}"
    old.make_project(name)
    operator.do("backup", name, "--server", "old")
    ids = {row["name"]: row["server_id"] for row in operator.json("servers")}
    elsewhere = old.url.replace("127.0.0.1", "localhost")
    login = ("login", elsewhere, "--name", "moved", "--password-file", str(old.password_file))
    operator.do(*login)
    [listed] = [row for row in operator.json("ls", "--server", "moved") if row["name"] == name]
    assert listed["backups"] == 0
    operator.do(*login, "--server-id", ids["old"])
    assert operator.backup(name, "--server", "moved") == {name: "unchanged"}
    code, _, err = operator.run(*login, "--server-id", "new")
    assert (code, f"--server-id {ids['old']}" in err) == (0, True)
    assert operator.backup(name, "--server", "moved") == {name: "stored"}
    operator.do("logout", "moved")


def test_clone_of_a_machine_that_is_signed_in_begins_backups_of_its_own(
    operator: Operator, old: LabServer, tmp_path: Path
) -> None:
    if not network_cards():
        pytest.skip("this machine has no network card, by which a clone would be known")
    name = f"image {secrets.token_hex(3)}"
    old.make_project(name)
    operator.do("backup", name, "--server", "old")
    ids = {row["name"]: row["server_id"] for row in operator.json("servers")}
    shutil.copytree(operator.directory, tmp_path / "clone")
    clone = Operator(operator.store, tmp_path / "clone")
    config = tmp_path / "clone" / "config" / "filestore" / "gns3.toml"
    config.write_text(re.sub('machine = ".*"', 'machine = "02:00:00:00:00:99"', config.read_text()))
    code, _, err = clone.run("backup", name, "--server", "old")
    assert (code, "may be a clone" in err, ids["old"] in err) == (5, True, True)
    code, _, _ = clone.run("login", old.url, "--name", "old", "--password-file", str(old.password_file))
    assert code == 0
    assert clone.backup(name, "--server", "old") == {name: "stored"}
    assert operator.backup(name, "--server", "old") == {name: "unchanged"}
    assert len(operator.json("verify", name)) == 2


def test_file_of_a_stranger_neither_hides_nor_replaces_a_backup(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name = f"own {secrets.token_hex(3)}"
    project_id = old.make_project(name, {STATE: b"mine"})
    mine = operator.json("backup", name, "--server", "old")[0]["file_uuid"]
    theirs = store_copy(operator, mine, owner="mallory")
    bait = old.make_project(f"bait {secrets.token_hex(3)}", {STATE: b"theirs"})
    baited = operator.json("backup", bait, "--server", "old")[0]["file_uuid"]
    only_theirs = store_copy(operator, baited, owner="mallory")
    operator.do("prune", bait, "--keep-last", "1")
    operator.store.request("DELETE", f"/files/{baited}")

    for named in (name, project_id):
        assert operator.json("restore", named, "--to", "new")[0]["file_uuid"] == mine
        assert [row["file_uuid"] for row in operator.json("verify", named)] == [mine]
    _, out, _ = operator.run("verify", "--json")  # other tests have left some that are not whole
    assert (mine in out, theirs in out) == (True, False)
    [listed] = [row for row in operator.json("ls", "--server", "old") if row["name"] == name]
    assert (listed["file_uuid"], listed["backups"]) == (mine, 1)
    assert operator.backup(name, "--server", "old") == {name: "unchanged"}
    rows = operator.json("prune", name, "--keep-last", "1")
    assert [row["file_uuid"] for row in rows] == [mine]

    project_name = operator.store.get(f"/project-files/{only_theirs}").json["project_name"]
    for named in (project_name, bait):
        code, _, err = operator.run("restore", named, "--to", "new")
        assert (code, "--owner: mallory" in err) == (4, True), err
    code, out, err = operator.run("restore", project_name, "--to", "new", "--owner", "mallory", "--json")
    assert (code, only_theirs in out, "mallory, not yours" in err) == (0, True, True)
    code, _, err = operator.run("restore", only_theirs, "--to", "new")
    assert (code, "belongs to mallory" in err) == (0, True)
    code, out, err = operator.run("verify", "--owner", "mallory", "--json")
    assert (code, theirs in out, mine in out, "mallory, not yours" in err) == (0, True, False, True)
    code, _, err = operator.run("verify", "--owner", "nobody-here")
    assert (code, "no backup of nobody-here" in err) == (4, True)


def make_image_of_mallory(operator: Operator, name: str, content: bytes) -> str:
    token = operator.store.user_token("mallory")
    fields: dict[str, Any] = {"filename": name, "virt_type": "qemu", "format": "qcow2"}
    created = operator.store.post("/vms", {**fields, "size_bytes": len(content)}, token=token)
    assert created.status == 201, created.body
    put = operator.store.request("PUT", created.json["upload_url"], content=content, token=token)
    assert put.status == 200, put.body
    return str(created.json["file_uuid"])


def test_image_of_a_stranger_is_given_by_its_content_and_not_by_its_name(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, content = an_image(), qcow2(MIB)
    make_image_of_mallory(operator, name, qcow2(MIB))
    md5 = old.upload_image(name, content)
    operator.do("images", "push", name, "--server", "old")
    [row] = operator.json("images", "pull", name, "--server", "new")
    assert (row["act"], new.images()[name]) == ("copy", md5)
    code, _, err = operator.run("images", "pull", name, "--server", "new", "--owner", "mallory")
    assert (code, "mallory, not yours" in err) == (5, True)

    name, shared, content = f"shared {secrets.token_hex(3)}", an_image(), qcow2(MIB)
    old.upload_image(shared, content)
    with_image(old, name, shared)
    operator.do("backup", name, "--server", "old")
    make_image_of_mallory(operator, "of-mallory.qcow2", content)
    restored = operator.json("restore", name, "--to", "new")[0]
    assert (restored["images"], shared in new.images()) == (1, True)
    [row] = operator.json("backup", name, "--server", "old", "--with-images")
    assert row["images"] == 1  # mallory may delete hers
