"""The machine of a GNS3 server is lost; projects, users and templates come back as the guide says."""

import re
import secrets
import shutil
import time
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.test_images import MIB, qcow2
from tests.gns3.test_local import contents, entries, full_lab, settle
from tests.test_docs import environment, run_shell

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PATHS = ("access/users", "access/roles", "access/groups", "access/acl", "pools", "templates", "images")
PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "gns3-full.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"<!-- test: (?P<group>\w+) -->\n *```sh\n(?P<text>.*?)```", re.DOTALL)


class Guide:
    """The commands of a page, on a server of this test."""

    def __init__(self, store: Cluster, work: Path, page: str = PAGE) -> None:
        self._work, self._page = work, page
        token = work / "token"
        token.touch(0o600)
        token.write_text(store.user_token(f"lost{secrets.token_hex(3)}"))  # who has no other backups
        self._found = environment() | store.command_environment(
            XDG_CONFIG_HOME=str(work / "config"), XDG_STATE_HOME=str(work / "state")
        )
        self._found |= {"FILESTORE_TOKEN_FILE": str(token), "PATH": environment()["PATH"]}

    def run(self, group: str, server: LabServer, **changed: str) -> str:
        """Run the blocks of a group; what they print. `changed`: text of the page, and what stands for it."""
        (self._work / "lab.password").write_text(server.password_file.read_text())
        (self._work / "lab.compute-password").write_text(server.compute_password_file.read_text())
        script = "\n".join(match["text"] for match in BLOCK.finditer(self._page) if match["group"] == group)
        assert script, group
        for before, after in {
            "http://127.0.0.1:3080": server.url,
            "/opt/gns3/projects": str(server.projects_path),
            "/etc/gns3/gns3_server.conf": str(server.directory / "gns3_server.conf"),
            **changed,
        }.items():
            script = script.replace(before, after)
        return run_shell(script, self._work, self._found)

    def login(self, server: LabServer) -> None:
        login = f"filestore gns3 login {server.url} --name lab --password-file {server.password_file}"
        compute = f" --compute-user gns3 --compute-password-file {server.compute_password_file}"
        run_shell(login + compute, self._work, self._found)


def state_of(server: LabServer) -> dict[str, object]:
    """What the API says of users, roles, pools, templates and images."""
    found: dict[str, object] = {}
    for path in (
        "access/users",
        "access/roles",
        "access/groups",
        "access/acl",
        "pools",
        "templates",
        "images",
    ):
        rows = server.call("GET", f"/{path}")
        for row in rows:
            for field in ("last_login", "updated_at", "created_at"):
                row.pop(field, None)
        found[path] = sorted(rows, key=str)
    return found


def test_machine_comes_back_by_the_commands_of_the_guide(store: Cluster, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    guide = Guide(store, work)
    place = tmp_path / "machine"
    with LabServer(gns3server(), place) as lab:
        lab.upload_image("router.qcow2", qcow2(MIB))
        guide.login(lab)
        project_id, _ = full_lab(lab, "ospf lab")
        lab.write(project_id, "project-files/vpcs/startup.vpc", b"ip 10.0.0.1\n")
        for number in range(3):
            full_lab(lab, f"lab {number}")
        user, _ = lab.user_with("Auditor")
        lab.call("POST", "/pools", {"name": "class"})
        template = {"name": "PC", "template_type": "vpcs", "compute_id": "local"}
        lab.call("POST", "/templates", template)
        (place / "symbols" / "mine.svg").write_text("<svg/>")
        settle()
        said = guide.run("full", lab)
        assert "4 projects: 4 stored" in said
        assert "4 projects: 0 stored (0 bytes), 4 unchanged" in said
        before = {path.name: (entries(path), contents(path)) for path in lab.projects_path.iterdir()}
        state = state_of(lab)
        said = guide.run("server", lab)
        assert "server configuration" in said
        identity = re.search(r'server_id = "(\w{16})"', (work / "config/filestore/gns3.toml").read_text())
        assert identity is not None
    shutil.rmtree(place)
    shutil.rmtree(work / "config")
    shutil.rmtree(work / "state")

    began_s = time.monotonic()
    with LabServer(gns3server(), place) as new:
        assert new.projects() == {}
        said = guide.run("lost", new, **{"9f86d081884c7d65": identity[1]})
        took_s = time.monotonic() - began_s
        print(f"{len(before)} projects are back after {took_s:.1f} s")
        after = {path.name: (entries(path), contents(path)) for path in new.projects_path.iterdir()}
        assert after == before
        assert set(new.projects()) == {"ospf lab", "lab 0", "lab 1", "lab 2"}
        assert new.images()
        new.stop()
        guide.run("stopped", new)
        assert (place / "symbols" / "mine.svg").read_text() == "<svg/>"
        configuration = place / "gns3_server.conf"  # of the lost server, on another port than this test gives
        text = re.sub(r"^port = \d+$", f"port = {new.port}", configuration.read_text(), flags=re.MULTILINE)
        configuration.write_text(text)
        new.start()
        assert state_of(new) == state
        assert user in {each["username"] for each in new.call("GET", "/access/users")}
