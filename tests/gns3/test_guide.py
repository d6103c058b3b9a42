"""docs/gns3.md and docs/gns3-nightly.md do what they say: their blocks run in order, against real servers."""

import os
import re
import secrets
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.test_images import MIB, an_image, qcow2
from tests.test_docs import environment, run_shell

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("gns3.md", "gns3-nightly.md")]
BLOCK = re.compile(r"(?:<!-- test: (?P<group>[\w ]+) -->\n)?```sh\n(?P<text>.*?)```", re.DOTALL)
UNITS = ROOT / "deploy" / "gns3" / "units"


def test_guide_works_as_it_stands(store: Cluster, tmp_path: Path) -> None:
    blocks = [(match["group"], match["text"]) for match in BLOCK.finditer("".join(PAGES))]
    of_machines = {"night", "token", "units", "watch"}  # tests/machines/test_labs.py runs them
    assert {group for group, _ in blocks} == {"guide", "gone"} | of_machines
    with (
        LabServer(gns3server(), tmp_path / "old") as old,
        LabServer(gns3server(), tmp_path / "new") as new,
    ):
        old.upload_image("router.qcow2", qcow2(MIB))
        old.make_project("ospf lab", {"project-files/qemu/1/disk": os.urandom(3 * MIB)})
        other_id = old.make_project("switching")
        old.add_qemu(other_id, "vm1", hda_disk_image="router.qcow2")
        old.close(other_id)
        work = tmp_path / "work"
        work.mkdir()
        for name, server in (("lab", old), ("new", new)):
            (work / f"{name}.password").write_text(server.password_file.read_text())
            (work / f"{name}.compute-password").write_text(server.compute_password_file.read_text())
        token = work / "token"
        token.touch(0o600)
        token.write_text(store.user_token("reader"))  # who has no backups of other tests
        script = "\n".join(text for group, text in blocks if group == "guide")
        script = script.replace("http://10.0.0.9:3080", old.url).replace("http://10.0.0.10:3080", new.url)
        assert "10.0.0." not in script
        found = environment() | store.command_environment(
            XDG_CONFIG_HOME=str(work / "config"), XDG_STATE_HOME=str(work / "state")
        )
        found["FILESTORE_TOKEN_FILE"] = str(token)
        found["PATH"] = environment()["PATH"]
        output = run_shell(script, work, found)
        assert "2 projects: 2 stored" in output
        assert "2 projects: 0 stored (0 bytes), 2 unchanged" in output
        assert re.search(
            r'filestore_gns3_projects\{server="lab",server_id="\w{16}",status="unchanged"\} 2.0', output
        )
        assert "restored and opened" in output
        restored = new.projects()
        assert set(restored) == {"ospf lab", "ospf lab, again"}
        assert restored["ospf lab, again"]["status"] == "opened"
        assert new.files_of(restored["ospf lab"]["project_id"])["project-files/qemu/1/disk"]
        old.call("DELETE", f"/projects/{other_id}")
        missed = "filestore gns3 backup --all --server lab || echo code $?"
        assert "1 gone.\ncode 4\n" in run_shell(missed, work, found)
        (gone,) = [text for group, text in blocks if group == "gone"]
        assert "code" not in run_shell(f"{gone}\n{missed}", work, found)


def test_privileges_and_roles_of_the_guide_are_enough(
    operator: Operator, old: LabServer, new: LabServer
) -> None:
    name, image = f"lab {secrets.token_hex(3)}", an_image()
    old.make_project(name)
    old.upload_image(image, qcow2(MIB))
    operator.do("images", "push", image, "--server", "old")
    commands = {
        "back up": (old, ["backup", name, "--server", "tried"]),
        "restore projects": (new, ["restore", name, "--start", "--to", "tried"]),
        "upload images": (new, ["images", "pull", image, "--server", "tried"]),
    }
    rows = re.findall(r"^\| (.+?) \| (.*`.+`.*) \| (.+), Administrator \|$", PAGES[0], re.MULTILINE)
    assert [act for act, _, _ in rows] == list(commands)
    needed: list[str] = []
    for act, privileges, roles in rows:
        named = re.findall(r"`(\w+\.\w+)`", privileges)
        needed = [*needed, *named] if privileges.startswith("these, ") else named
        server, command = commands[act]
        for role in (server.make_role(needed), *roles.split(", ")):
            user, password_file = server.user_with(role)
            access = ("--user", user, "--password-file", str(password_file))
            operator.do("login", server.url, "--name", "tried", *access)
            operator.do(*command)
            operator.do("logout", "tried")
        if act == "upload images":
            assert image in new.images()


def test_units_run_commands_that_there_are(tmp_path: Path) -> None:
    commands = [
        line.partition("=")[2]
        for path in sorted(UNITS.glob("*.service"))
        for line in path.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    assert len(commands) == 4
    once = [path.read_text() for path in UNITS.glob("*.service") if "Type=oneshot" in path.read_text()]
    assert ["SuccessExitStatus=10" in text for text in once] == [True, True, True]
    for command in commands:
        said = run_shell(f"{command} --help", tmp_path, environment())
        options = set(re.findall(r"--[a-z-]+", command))
        assert options <= set(re.findall(r"--[a-z-]+", said)), command
