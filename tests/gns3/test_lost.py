"""The machine of a GNS3 server is lost; 30 projects, users and templates come back as the guide says."""

import os
import re
import secrets
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.test_images import MIB, qcow2
from tests.gns3.test_local import full_lab, settle
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
    paths = [
        *PATHS,
        *(f"pools/{pool['resource_pool_id']}/resources" for pool in server.call("GET", "/pools")),
    ]
    found: dict[str, object] = {}
    for path in paths:
        rows = server.call("GET", f"/{path}")
        for row in rows:
            for field in ("last_login", "updated_at", "created_at"):
                row.pop(field, None)
        found[path] = sorted(rows, key=str)
    return found


def thirty_labs(lab: LabServer) -> None:
    """Ten labs of PCs with every kind of entry, ten with disks of QEMU, ten with folders of containers."""
    lab.upload_image("router.qcow2", qcow2(MIB))
    for number in range(10):
        project_id, _ = full_lab(lab, f"pcs {number}" if number else "ospf lab")
        lab.write(project_id, "project-files/vpcs/startup.vpc", b"ip 10.0.0.1\n")
        project_id = lab.make_project(f"routers {number}")
        node_id = lab.add_qemu(project_id, "r1", hda_disk_image="router.qcow2")
        lab.close(project_id)
        write_disk(lab.projects_path / project_id / "project-files" / "qemu" / node_id / "hda_disk.qcow2")
        project_id = lab.make_project(f"containers {number}")
        write_container(lab.projects_path / project_id / "project-files" / "docker" / str(uuid.uuid4()))


def write_disk(path: Path) -> None:
    """Write 64 MiB of which most are holes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as disk:
        for place in range(0, 64 * MIB, 16 * MIB):
            disk.seek(place)
            disk.write(secrets.token_bytes(MIB // 4))
        disk.truncate(64 * MIB)


def write_container(folder: Path) -> None:
    """Write the volumes of a container as GNS3 leaves them: files of root and of users that only it has."""
    network, root = folder / "etc" / "network", folder / "root"
    for volume in (network / "if-up.d", root / ".ssh"):
        volume.mkdir(parents=True)
    (network / "interfaces").write_text("auto eth0\niface eth0 inet dhcp\n")
    (network / ".gns3_perms").write_text("755:0:0:./if-up.d\n")
    (network / "if-up.d" / "route").symlink_to("/usr/lib/none")
    (root / ".ssh" / "id_ed25519").write_bytes(secrets.token_bytes(400))
    (root / ".ssh" / "id_ed25519").chmod(0o600)
    (root / ".ssh").chmod(0o700)
    (root / "sudo").write_bytes(b"#!/bin/sh\n")
    os.link(root / "sudo", root / "sudoedit")
    for path, owner in ((root / "sudo", 0), (root / ".ssh" / "id_ed25519", 100_101), (network, 65_534)):
        os.chown(path, owner, owner)
    (root / "sudo").chmod(0o4755)


def differences(kept: Path, folder: Path) -> str:
    """What rsync would change in a folder, but for its own time. Sockets are made anew by their programs."""
    options = ("-anicHAX", "--delete", "--numeric-ids", "--exclude=socket")
    done = subprocess.run(["rsync", *options, f"{kept}/", f"{folder}/"], capture_output=True, check=True)
    return done.stdout.decode(errors="replace").removeprefix(".d..t...... ./\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
@pytest.mark.skipif(shutil.which("rsync") is None, reason="compares with rsync")
def test_machine_with_thirty_labs_comes_back_by_the_commands_of_the_guide(
    store: Cluster, tmp_path: Path
) -> None:
    work, place, kept = tmp_path / "work", tmp_path / "machine", tmp_path / "kept"
    work.mkdir()
    guide = Guide(store, work)
    with LabServer(gns3server(), place) as lab:
        guide.login(lab)
        thirty_labs(lab)
        users = {lab.user_with("Auditor")[0] for _ in range(3)}
        role = lab.make_role(["Project.Audit"])
        pool_id = lab.call("POST", "/pools", {"name": "class"})["resource_pool_id"]
        lab.call("PUT", f"/pools/{pool_id}/resources/{lab.projects()['pcs 1']['project_id']}")
        lab.call("POST", "/templates", {"name": "PC", "template_type": "vpcs", "compute_id": "local"})
        qemu = {"name": "Router", "template_type": "qemu", "compute_id": "local"}
        lab.call("POST", "/templates", qemu | {"hda_disk_image": "router.qcow2"})
        (place / "symbols" / "mine.svg").write_text("<svg/>")
        settle()
        said = guide.run("full", lab)
        assert "30 projects: 30 stored" in said
        assert "30 projects: 0 stored (0 bytes), 30 unchanged" in said
        names = set(lab.projects())
        subprocess.run(["cp", "-a", str(lab.projects_path), str(kept)], check=True)
        state = state_of(lab)
        said = guide.run("server", lab)
        assert "server configuration" in said
        identity = re.search(r'server_id = "(\w{16})"', (work / "config/filestore/gns3.toml").read_text())
        assert identity is not None
    used = used_bytes(place / "projects")
    shutil.rmtree(place)
    shutil.rmtree(work / "config")
    shutil.rmtree(work / "state")

    with LabServer(gns3server(), place) as new:
        assert new.projects() == {}
        began_s = time.monotonic()
        guide.run("lost", new, **{"9f86d081884c7d65": identity[1]})
        projects_s = time.monotonic() - began_s
        assert differences(kept, new.projects_path) == ""
        assert used_bytes(new.projects_path) <= used * 1.1  # holes are holes again
        assert set(new.projects()) == names
        assert new.images()
        new.stop()
        began_s = time.monotonic()
        guide.run("stopped", new)
        print(f"30 projects are back after {projects_s:.1f} s, the server {time.monotonic() - began_s:.1f} s")
        assert (place / "symbols" / "mine.svg").read_text() == "<svg/>"
        configuration = place / "gns3_server.conf"  # of the lost server, on another port than this test gives
        text = re.sub(r"^port = \d+$", f"port = {new.port}", configuration.read_text(), flags=re.MULTILINE)
        configuration.write_text(text)
        new.start()
        assert state_of(new) == state
        assert users <= {each["username"] for each in new.call("GET", "/access/users")}
        assert role in {each["name"] for each in new.call("GET", "/access/roles")}
        projects = new.projects()
        for name in ("pcs 3", "routers 3", "containers 3"):
            new.open(projects[name]["project_id"])
            assert new.call("GET", f"/projects/{projects[name]['project_id']}/nodes")
            new.close(projects[name]["project_id"])


def used_bytes(folder: Path) -> int:
    """The bytes that all files take on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))
