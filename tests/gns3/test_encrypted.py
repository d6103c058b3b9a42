"""Full backups that are encrypted at the client: only the key brings their content back."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_local import ONE, contents, entries, full_lab, local, require_equal, settle

pyrage: Any = pytest.importorskip("pyrage")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def name() -> str:
    return f"encrypted {secrets.token_hex(3)}"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """Files with a public key, and with its secret key."""
    identity = pyrage.x25519.Identity.generate()
    public, secret = tmp_path / "public", tmp_path / "secret"
    public.write_text(f"{identity.to_public()}\n")
    secret.write_text(f"{identity}\n")
    return public, secret


def content_of(operator: Operator, file_uuid: str) -> bytes:
    return operator.store.request("GET", f"/files/{file_uuid}").body


def test_only_the_key_brings_an_encrypted_project_back(
    operator: Operator, old: LabServer, new: LabServer, name: str, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    public, secret = keys
    project_id, folder = full_lab(old, name)
    settle()
    backup = ("backup", name, "--server", "old", *local(old))
    assert operator.json(*backup)[0]["status"] == "stored"  # not encrypted yet
    [stored] = operator.json(*backup, "--recipients", str(public), "--tag", "v1")
    assert stored["status"] == "stored"
    content = content_of(operator, stored["file_uuid"])
    assert content.startswith(b"age-encryption.org/v1\n")
    assert b"project-files" not in content
    assert operator.json(*backup, "--recipients", str(public))[0]["status"] == "unchanged"
    before, files = entries(folder), contents(folder)

    assert "its bytes are whole; encrypted" in operator.do("verify", name, "--read-data")
    assert [row["kept_by"] for row in operator.json("prune", name, "--keep-last", "1")] == [
        [],
        ["tag v1", "last"],
    ]
    listed = {row["name"]: row for row in operator.json("ls", "--server", "old")}[name]
    assert (listed["kind"], listed["backups"], listed["changed"]) == ("full", 1, "")

    restore = ("restore", name, "--to", "new", *local(new))
    code, _, err = operator.run(*restore)
    assert (code, "is encrypted: give the file of your key" in err) == (5, True), err
    wrong = tmp_path / "wrong"
    wrong.write_text(f"{pyrage.x25519.Identity.generate()}\n")
    code, _, err = operator.run(*restore, "--identity", str(wrong))
    assert (code, "cannot be decrypted" in err, (new.projects_path / project_id).exists()) == (
        5,
        True,
        False,
    ), err
    operator.do(*restore, "--identity", str(secret))
    require_equal(before, new.projects_path / project_id, files)


def test_replaced_project_is_encrypted_too_and_versions_are_compared(
    operator: Operator, old: LabServer, name: str, keys: tuple[Path, Path]
) -> None:
    public, secret = keys
    _, folder = full_lab(old, name)
    (folder / ONE).write_bytes(b"first\n")
    settle()
    operator.do(
        "backup", name, "--server", "old", *local(old), "--recipients", str(public), "--tag", "golden"
    )
    (folder / ONE).write_bytes(b"second\n")
    settle()
    identity = ("--identity", str(secret))
    code, _, err = operator.run("reset", name, "--server", "old", *local(old), *identity)
    assert code == 0, err
    assert (folder / ONE).read_bytes() == b"first\n"
    _, replaced = operator.json("versions", name)
    assert b"second" not in content_of(operator, replaced["file_uuid"])
    code, _, err = operator.run("diff", name)
    assert (code, "is encrypted" in err) == (5, True), err
    assert "-first\n+second\n" in operator.do("diff", name, *identity)


def test_encryption_needs_what_can_be_compared_without_the_archive(
    operator: Operator, old: LabServer, name: str, keys: tuple[Path, Path]
) -> None:
    old.make_project(name)
    recipients = ("--recipients", str(keys[0]))
    for options in ((), (*local(old), "--with-images")):
        code, _, err = operator.run("backup", name, "--server", "old", *options, *recipients)
        assert (code, "--recipients needs --local" in err) == (2, True), err
    code, _, err = operator.run("backup", name, *local(old), "--recipients", str(keys[1]))
    assert (code, "no public key" in err, "AGE-SECRET" in err) == (2, True, False), err
