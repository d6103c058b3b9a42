"""Versions of a project: messages, tags."""

import secrets
from pathlib import Path

import pytest

from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "gns3-versions.md").read_text(encoding="utf-8")
CONFIG = "project-files/vpcs/x/startup.vpc"


@pytest.fixture
def name() -> str:
    return f"versions {secrets.token_hex(3)}"


def versions(operator: Operator, name: str) -> list[tuple[str, str]]:
    """Tag and message of each version, oldest first."""
    return [(row["tag"], row["message"]) for row in operator.json("versions", name)]


def test_versions_have_messages_and_tags_that_move(operator: Operator, old: LabServer, name: str) -> None:
    project_id = old.make_project(name, {CONFIG: b"set pcname a\n"})
    backup = ("backup", name, "--server", "old")
    operator.do(*backup, "--message", "before BGP", "--tag", "golden")
    assert versions(operator, name) == [("golden", "before BGP")]
    old.write(project_id, CONFIG, b"set pcname b\n")
    operator.do(*backup)
    operator.do(*backup, "--message", "it works")  # the project is unchanged
    assert versions(operator, name) == [("golden", "before BGP"), ("", "it works")]
    code, _, err = operator.run(*backup, "--message", "another")
    assert (code, "has the message 'it works' already" in err) == (5, True), err
    operator.do("note", name, "another")
    old.write(project_id, CONFIG, b"set pcname c\n")
    operator.do(*backup, "--tag", "golden")
    assert versions(operator, name) == [("", "before BGP"), ("", "another"), ("golden", "")]
    first, *_ = operator.json("versions", name)
    operator.do("tag", first["file_uuid"], "golden")
    assert versions(operator, name) == [("golden", "before BGP"), ("", "another"), ("", "")]

    kept = operator.json("prune", name, "--keep-last", "1")
    assert [row["kept_by"] for row in kept] == [["tag golden"], [], ["last"]]
    restored = operator.json("restore", f"{name}@golden", "--to", "new")[0]
    assert restored["file_uuid"] == first["file_uuid"]
    operator.do("tag", f"{name}@golden", "--remove")
    assert versions(operator, name) == [("", "before BGP"), ("", "")]
    code, _, err = operator.run("restore", f"{name}@golden", "--to", "new")
    assert (code, "has the tag 'golden'" in err) == (4, True), err


def test_hostile_message_is_rejected_before_anything_is_stored(
    operator: Operator, old: LabServer, name: str
) -> None:
    old.make_project(name)
    for option, text in (("--message", "a\x1b[31m"), ("--message", "x" * 256), ("--tag", "2026-11-20")):
        code, out, err = operator.run("backup", name, "--server", "old", option, text)
        assert (code, out, option in err) == (2, "", True), err
    assert operator.project_files(project_id=old.projects()[name]["project_id"]) == []
