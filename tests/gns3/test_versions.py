"""Versions of a project: messages, tags, diffs, and the golden one."""

import secrets
import signal
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.gns3.cutting_proxy import Gate
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_local import local, settle
from tests.gns3.test_lost import Guide

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


def test_tag_whose_move_was_killed_is_on_two_versions_until_it_is_moved_again(
    operator: Operator, old: LabServer, name: str
) -> None:
    project_id = old.make_project(name, {CONFIG: b"golden\n"})
    backup = ("backup", name, "--server", "old")
    for line in (b"golden\n", b"better\n", b"newest\n"):
        old.write(project_id, CONFIG, line)
        operator.do(*backup)
    golden, better, newest = (each["file_uuid"] for each in operator.json("versions", name))
    operator.do("tag", golden, "golden")

    def is_updated() -> bool:
        return bool(operator.store.get(f"/project-files/{better}").json["tag"] == "golden")

    gate = Gate(operator.store.nodes[0].api_port, is_updated)
    with gate.listening() as url, operator.start("tag", better, "golden", "--url", url) as process:
        try:
            assert gate.holds.wait(60), "the tag was not moved"
        finally:
            process.kill()
    assert [tag for tag, _ in versions(operator, name)] == ["golden", "golden", ""]
    kept = operator.json("prune", name, "--keep-last", "1", "--dry-run")
    assert [row["kept_by"] for row in kept] == [["tag golden"], ["tag golden"], ["last"]]

    operator.do("tag", better, "golden")
    assert [tag for tag, _ in versions(operator, name)] == ["", "golden", ""]
    kept = operator.json("prune", name, "--keep-last", "1")
    assert [row["file_uuid"] for row in kept if row["deleted"]] == [golden]
    assert [row["file_uuid"] for row in operator.json("versions", name)] == [better, newest]


def test_hostile_message_is_rejected_before_anything_is_stored(
    operator: Operator, old: LabServer, name: str
) -> None:
    old.make_project(name)
    for option, text in (("--message", "a\x1b[31m"), ("--message", "x" * 256), ("--tag", "2026-11-20")):
        code, out, err = operator.run("backup", name, "--server", "old", option, text)
        assert (code, out, option in err) == (2, "", True), err
    assert operator.project_files(project_id=old.projects()[name]["project_id"]) == []


def add_node(server: LabServer, project_id: str, name: str) -> None:
    server.open(project_id)
    server.call(
        "POST", f"/projects/{project_id}/nodes", {"name": name, "node_type": "vpcs", "compute_id": "local"}
    )
    server.close(project_id)


def changes(operator: Operator, *arguments: str) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Of a diff: the names of the topology's changes, and what became of each file."""
    [found] = operator.json("diff", *arguments)
    return (
        [(each["change"], each["name"]) for each in found["topology"]],
        {each["path"]: each["change"] for each in found["files"]},
    )


@pytest.mark.parametrize("kind", ["export", "full"])
def test_diff_tells_nodes_files_and_lines(operator: Operator, old: LabServer, name: str, kind: str) -> None:
    where = local(old) if kind == "full" else ()
    disk = "project-files/qemu/x/disk.qcow2"
    project_id = old.make_project(name, {CONFIG: b"set pcname a\nip dhcp\n", disk: bytes(3 << 20)})
    settle()
    operator.do("backup", name, "--server", "old", *where, "--tag", "v1")
    add_node(old, project_id, "PC9")
    old.write(project_id, CONFIG, b"set pcname b\x1b[2J\nip dhcp\n")
    old.write(project_id, disk, b"\1" + bytes(3 << 20))
    settle()
    operator.do("backup", name, "--server", "old", *where, "--tag", "v2")
    expected = [("added", "PC9 (vpcs)")], {CONFIG: "changed", disk: "changed"}
    assert changes(operator, name) == changes(operator, name, "v1", "v2") == expected
    told = operator.do("diff", name, "v1")
    assert "+node PC9 (vpcs)\n" in told
    assert "-set pcname a\n+set pcname b?[2J\n ip dhcp\n" in told
    assert "\x1b" not in told
    assert changes(operator, name, "v2", "v1")[0] == [("removed", "PC9 (vpcs)")]

    now = ("--now", "--server", "old", *where)
    assert changes(operator, name, *now) == ([], {})
    old.write(project_id, CONFIG, b"set pcname c\n")
    assert changes(operator, name, *now) == ([], {CONFIG: "changed"})
    assert changes(operator, name, "v1", *now) == expected
    code, _, err = operator.run("diff", name, "v3")
    assert (code, "has the tag 'v3'" in err) == (4, True), err


def test_versions_of_both_kinds_are_compared(operator: Operator, old: LabServer, name: str) -> None:
    project_id = old.make_project(name, {CONFIG: b"a\n", "project-files/x/big": bytes(2 << 20)})
    settle()
    operator.do("backup", name, "--server", "old", "--tag", "exported")
    old.write(project_id, CONFIG, b"b\n")
    settle()
    operator.do("backup", name, "--server", "old", *local(old), "--tag", "full")
    assert changes(operator, name, "exported", "full") == (
        [],
        {CONFIG: "changed", "project-files/x/big": "unknown"},
    )


def test_closed_project_goes_back_to_its_golden_version(
    operator: Operator, old: LabServer, name: str
) -> None:
    project_id = old.make_project(name, {CONFIG: b"golden\n"})
    config = old.projects_path / project_id / CONFIG
    settle()
    operator.do("backup", name, "--server", "old", *local(old))
    code, _, err = operator.run("reset", name, "--server", "old", *local(old))
    assert (code, "No backup of" in err, "has the tag 'golden'" in err) == (4, True, True), err
    operator.do("tag", name, "golden")
    config.write_bytes(b"work of a student\n")
    settle()
    old.open(project_id)
    code, _, err = operator.run("reset", name, "--server", "old", *local(old))
    assert (code, "Close it first" in err, config.read_bytes()) == (5, True, b"work of a student\n"), err
    old.close(project_id)
    code, _, err = operator.run("reset", name, "--server", "old", *local(old))
    assert (code, "the replaced project is in the backup" in err) == (0, True), err
    assert config.read_bytes() == b"golden\n"
    assert changes(operator, name, "golden")[1] == {CONFIG: "changed"}  # the work is kept as a version


def test_watch_resets_what_is_marked_when_it_is_closed(operator: Operator, old: LabServer, name: str) -> None:
    marked, other = (old.make_project(each, {CONFIG: b"golden\n"}) for each in (name, f"{name} other"))
    files = [old.projects_path / each / CONFIG for each in (marked, other)]
    settle()
    operator.do("backup", name, f"{name} other", "--server", "old", *local(old))
    operator.do("tag", name, "golden")
    watching = operator.start("watch", "--server", "old", *local(old), "--reset", "--every", "24h")
    try:
        assert watching.stdout is not None
        first_run = iter(watching.stdout.readline, b"")
        assert any(b" projects: " in line for line in first_run)
        for project_id in (other, marked):
            old.open(project_id)
        for file in files:
            file.write_bytes(b"of a student\n")
        settle()
        for project_id in (other, marked):
            old.close(project_id)
        wait_until(lambda: files[0].read_bytes() == b"golden\n", what="the golden version", timeout_s=120)
    finally:
        watching.send_signal(signal.SIGTERM)
        watching.communicate(timeout=60)
    assert files[1].read_bytes() == b"of a student\n"
    assert changes(operator, name, "golden")[1] == {CONFIG: "changed"}
    for each in (name, f"{name} other"):
        assert len(operator.json("versions", each)) == 2


def test_guide_works_as_it_stands(store: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    again = '\n<!-- test: again -->\n```sh\nfilestore gns3 backup "ospf lab"\n```'
    guide = Guide(store, work, PAGE + again)
    with LabServer(gns3server(), tmp_path / "machine") as lab:
        guide.login(lab)
        project_id = lab.make_project("ospf lab", {CONFIG: b"set pcname a\n"})
        assert "before-bgp" in guide.run("versions", lab)
        lab.write(project_id, CONFIG, b"set pcname b\n")
        guide.run("again", lab)
        assert "+set pcname b\n" in guide.run("diff", lab, **{"2026-11-20T18:00": "2999-01-01"})
        settle()
        assert "no changes" in guide.run("golden", lab)
