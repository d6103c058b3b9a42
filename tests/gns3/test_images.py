"""Images go by their content, both ways, and never one over another."""

import os
import secrets
import signal

import pytest

from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

MIB = 1 << 20


def qcow2(size_bytes: int) -> bytes:
    """What GNS3 takes for a disk image."""
    return b"QFI\xfb\0\0\0\x03" + os.urandom(size_bytes)


def an_image() -> str:
    return f"router-{secrets.token_hex(4)}.qcow2"


def test_image_goes_into_the_store_and_to_another_server(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, content = an_image(), qcow2(5 * MIB)
    md5 = old.upload_image(name, content)
    planned = operator.json("images", "push", name, "--server", "old", "--dry-run")
    assert [(row["act"], row["done"]) for row in planned] == [("copy", False)]
    assert operator.store.get(f"/vms?md5={md5}").json["count"] == 0
    operator.do("images", "push", name, "--server", "old")
    assert operator.store.get(f"/vms?md5={md5}").json["count"] == 1
    assert [row["act"] for row in operator.json("images", "push", name, "--server", "old")] == ["there"]
    operator.do("images", "pull", md5, "--server", "new")
    assert new.images()[name] == md5
    assert (new.directory / "images" / "QEMU" / name).read_bytes() == content
    listed = {row["filename"]: row for row in operator.json("ls", "images", "--server", "old")}
    assert listed[name]["file_uuid"]
    assert not any(each.startswith(("empty", "OVMF", "config.img")) for each in listed)


def test_image_that_is_nowhere_is_not_found(operator: Operator, old: LabServer) -> None:
    old.upload_image(name := an_image(), qcow2(MIB))
    for act, server in (("push", "old"), ("pull", "new"), ("sync", "old")):
        code, _, err = operator.run("images", act, name, "nope.qcow2", "--server", server)
        assert (code, "nope.qcow2: not_found" in err, name in err) == (4, True, False), err


def test_sync_makes_all_equal(operator: Operator, old: LabServer, new: LabServer) -> None:
    here, there = an_image(), an_image()
    md5s = {here: old.upload_image(here, qcow2(MIB)), there: new.upload_image(there, qcow2(MIB))}
    code, out, err = operator.run("images", "sync", here, there)
    assert code == 0, (out, err)
    for server in (old, new):
        assert md5s.items() <= server.images().items()


def test_image_of_the_same_name_with_other_content_stays(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name = an_image()
    old.upload_image(name, qcow2(MIB))
    mine = new.upload_image(name, qcow2(MIB))
    operator.do("images", "push", name, "--server", "old")
    code, _, err = operator.run("images", "pull", name, "--server", "new")
    assert code == 5
    assert f"another image with this name, with the MD5 {mine}" in err
    assert new.images()[name] == mine


def test_content_that_is_there_under_another_name_is_no_copy(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, other, content = an_image(), an_image(), qcow2(MIB)
    old.upload_image(name, content)
    new.upload_image(other, content)
    operator.do("images", "push", name, "--server", "old")
    rows = operator.json("images", "pull", name, "--server", "new")
    assert [row["act"] for row in rows] == ["there"]


def test_push_without_the_credentials_of_the_compute_says_what_to_do(
    operator: Operator, old: LabServer
) -> None:
    old.upload_image(name := an_image(), qcow2(MIB))
    user, password_file = old.user_with("Auditor")
    operator.do("login", old.url, "--name", "bare", "--user", user, "--password-file", str(password_file))
    code, _, err = operator.run("images", "push", name, "--server", "bare")
    operator.do("logout", "bare")
    assert code == 2
    assert "--compute-user" in err


def test_image_that_is_not_what_the_server_lists_is_not_stored(operator: Operator, old: LabServer) -> None:
    name = an_image()
    md5 = old.upload_image(name, qcow2(MIB))
    (old.directory / "images" / "QEMU" / name).write_bytes(qcow2(MIB))
    code, _, err = operator.run("images", "push", name, "--server", "old")
    assert code == 1
    assert "was changed or is damaged" in err
    assert operator.store.get(f"/vms?md5={md5}").json["count"] == 0
    assert not [
        file for file in operator.store.get("/vms?limit=1000").json["vms"] if file["filename"] == name
    ]


def test_push_that_was_killed_goes_on_where_it_ended(operator: Operator, old: LabServer) -> None:
    name, content = an_image(), qcow2(200 * MIB)
    md5 = old.upload_image(name, content)
    pushing = operator.start("images", "push", name, "--server", "old")

    def unfinished() -> list[dict[str, object]]:
        files = operator.store.get("/vms?limit=1000").json["vms"]
        return [file for file in files if file["filename"] == name and file["status"] != "available"]

    from deploy.processes import wait_until

    def has_some() -> bool:
        found = unfinished()
        if not found:
            return False
        head = operator.store.request(
            "HEAD", f"/files/{found[0]['file_uuid']}/content", headers={"Tus-Resumable": "1.0.0"}
        )
        return int(head.headers.get("upload-offset", "0")) > 0

    wait_until(has_some, what="some bytes", timeout_s=60)
    pushing.send_signal(signal.SIGKILL)
    pushing.communicate()
    begun = unfinished()
    operator.do("images", "push", name, "--server", "old")
    found = operator.store.get(f"/vms?md5={md5}").json["vms"]
    assert len(found) == 1
    assert not begun or found[0]["file_uuid"] == begun[0]["file_uuid"]
