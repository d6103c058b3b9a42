"""The units of docs/gns3-nightly.md on a machine with the package: set up as it says, they work."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.test_local import fill
from tests.machines.bed import BRIDGE, Machine
from tests.machines.operator import ACCESS, WAIT_S, shown
from tests.sources import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

RELAY = Path(__file__).parent / "programs" / "relay.py"
GUIDE, FULL = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("gns3-nightly.md", "gns3-full.md")
)
ADDRESS, PORT = "10.0.0.9", 3080  # as the guide has them
WATCH_LOG = "journalctl -o cat -u filestore-gns3-watch.service"
WRITABLE = {
    *("/tmp", "/var/tmp"),  # of its own
    "/var/lib/filestore-gns3",
    "/var/lib/prometheus/node-exporter",
    "/opt/gns3/projects/.filestore",
}
PROBE = """[Service]
ExecStart=
ExecStart=/bin/sh /srv/probe
"""
PROBE_SCRIPT = """find /opt /etc /root /home /srv -type f -exec cat {} + > /dev/null && echo read all
find / \\( -path /proc -o -path /sys -o -path /dev \\) -prune \\
    -o -type d -writable -print -prune -o -type f -writable -print
"""
# No container has LVM: a copy of the disk with the projects is in the place of the snapshot.
LVM = {
    "umount /run/gns3-snapshot": "umount /run/gns3-snapshot",
    "lvremove --yes vg/gns3-backup": "rm -r /srv/copy",
    "lvcreate --snapshot --name gns3-backup --size 10G vg/gns3": "cp --archive /opt/gns3 /srv/copy",
    "mount -o ro /dev/vg/gns3-backup /run/gns3-snapshot": "mount -o bind,ro /srv/copy /run/gns3-snapshot",
}
METRICS = "cat /var/lib/prometheus/node-exporter/filestore_gns3_*.prom"


@pytest.fixture
def relays() -> list["subprocess.Popen[bytes]"]:
    """The processes between the machines and the server. Without the last, its port rejects connections."""
    return []


@pytest.fixture
def lab(
    machines: list[Machine], tmp_path: Path, relays: list["subprocess.Popen[bytes]"]
) -> Iterator[LabServer]:
    """A GNS3 server of this system, which the machines reach where the guide has one."""
    machine, path = machines[0], tmp_path / "gns3.sock"
    with ExitStack() as stack:
        started = stack.enter_context(LabServer(gns3server(), tmp_path / "lab"))
        give = ("ip", "addr", "replace", f"{ADDRESS}/24", "dev", BRIDGE)
        subprocess.run(machine.command_beside(*give), check=True)
        relay = (sys.executable, str(RELAY))

        def start(*command: str) -> None:
            relays.append(stack.enter_context(subprocess.Popen(command)))
            stack.callback(relays[-1].kill)

        start(*relay, str(path), f"127.0.0.1:{started.port}")
        wait_until(lambda: accepts(path), what="the relay to the server", timeout_s=WAIT_S)
        start(*machine.command_beside(*relay, f"{ADDRESS}:{PORT}", str(path)))
        wait_until(
            lambda: machine.succeeds(f"exec 3<>/dev/tcp/{ADDRESS}/{PORT}"), what="a way", timeout_s=WAIT_S
        )
        yield started


def accepts(path: Path) -> bool:
    """Whether a process accepts connections at this socket."""
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(str(path)) == 0


def block(group: str, page: str = GUIDE) -> str:
    """What the guide says there."""
    found = re.search(rf"<!-- test: {group} -->\n```sh\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def sign_in(machine: Machine, lab: LabServer) -> str:
    """Follow the guide to a first night; what its service says."""
    machine.run(f"{ACCESS}{block('token')}cp /var/lib/filestore/coordinator/ca.pem .")
    machine.write("/srv/lab.password", lab.password_file.read_text())
    machine.write("/srv/lab.compute-password", lab.compute_password_file.read_text())
    machine.run(block("night"))
    return machine.run("journalctl -o cat -u filestore-gns3.service")


def test_units_of_the_guide_back_up_and_prune_whatever_fails(machines: list[Machine], lab: LabServer) -> None:
    machine = machines[0]
    lab.upload_image("router.qcow2", b"QFI\xfb" + bytes(1 << 20))
    good_id, bad_id = lab.make_project("good"), lab.make_project("bad")
    lab.add_qemu(good_id, "vm", hda_disk_image="router.qcow2")
    lab.close(good_id)
    told = sign_in(machine, lab)
    assert "2 projects: 2 stored" in told
    assert "good: 1 images stored" in told
    assert 'status="stored"} 2.0' in machine.run(METRICS)
    assert "filestore-gns3.timer" in machine.run("systemctl list-timers")
    assert pruned(machine, 1).count("kept: last") == 2

    lab.kill()
    (lab.projects_path / bad_id / "bad.gns3").write_bytes(b"")
    lab.start()
    assert not machine.succeeds("systemctl start filestore-gns3.service")
    assert shown(machine, "filestore-gns3.service", "ExecMainStatus") == "4"
    assert "bad: not_found" in machine.run("journalctl -o cat -u filestore-gns3.service")
    assert pruned(machine, 2).count("kept: last") == 4
    assert f'project_id="{bad_id}"' in machine.run(METRICS)
    assert "bad  forgotten" in machine.run(block("units").replace("switching", "bad"))
    assert machine.succeeds("systemctl start filestore-gns3.service")

    machine.run(block("watch"))
    assert "filestore-gns3.timer" not in machine.run("systemctl list-timers")
    wait_until(lambda: "Watching GNS3 server" in machine.run(WATCH_LOG), what="a watch", timeout_s=WAIT_S)
    assert "filestore-gns3-prune.timer" in machine.run("systemctl list-timers")
    machine.run(
        "systemctl disable --now filestore-gns3-watch.service && systemctl stop filestore-gns3-prune.timer"
    )
    assert shown(machine, "filestore-gns3-watch.service", "Result") == "success"


def pruned(machine: Machine, nights: int) -> str:
    """What pruning has said, once it has ended after so many."""
    journal = "journalctl -o cat -u filestore-gns3-prune.service"
    wait_until(lambda: machine.run(journal).count("Finished ") == nights, what="pruning", timeout_s=WAIT_S)
    return machine.run(journal)


def copy_projects(machine: Machine, lab: LabServer) -> None:
    """The folder of projects is on the machine now, with its owners, modes and links."""
    archive = lab.directory / "projects.tar"
    form = ("--create", "--acls", "--xattrs", "--numeric-owner", "--file", str(archive))
    subprocess.run(
        ["tar", *form, "-C", str(lab.directory), "projects"], check=True, stderr=subprocess.DEVNULL
    )
    machine.copy_in(archive, "/srv/")
    machine.run(
        "id gns3 || useradd --system gns3; install -d -o gns3 /opt/gns3; rm -rf /opt/gns3/projects;"
        "tar --extract --xattrs --xattrs-include='*' --numeric-owner -f projects.tar -C /opt/gns3;"
        "chown gns3: /opt/gns3/projects"
    )


def run_locally(machine: Machine) -> str:
    """Start the service for folders; what it says, also if it fails."""
    machine.run("systemctl start filestore-gns3-local.service || true")
    invocation = shown(machine, "filestore-gns3-local.service", "InvocationID")
    return machine.run(f"journalctl --sync; journalctl -o cat _SYSTEMD_INVOCATION_ID={invocation}")


def test_unit_for_folders_reads_everything_and_writes_nothing_else(
    machines: list[Machine], lab: LabServer
) -> None:
    machine = machines[1]
    project_id = lab.make_project("full")
    folder = f"/opt/gns3/projects/{project_id}"
    assert "1 projects: 1 stored" in sign_in(machine, lab)
    fill(lab.projects_path / project_id)
    copy_projects(machine, lab)
    machine.run(block("units", FULL))
    assert "1 projects: 1 stored" in run_locally(machine)  # by a server that runs
    machine.write("/srv/probe", PROBE_SCRIPT)
    drop_in = "/etc/systemd/system/filestore-gns3-local.service.d/probe.conf"
    machine.write(drop_in, PROBE)
    machine.run("systemctl daemon-reload")
    said = run_locally(machine).splitlines()
    assert "read all" in said
    open_to_all = f"{folder}/project-files/odd/project-files/mode 1777"
    assert {line for line in said if line.startswith("/")} == WRITABLE | {open_to_all}
    machine.run(f"rm {drop_in}; systemctl daemon-reload")

    lab.start_nodes(project_id)
    machine.run(f"touch {folder}/new")
    assert "0 unchanged, 1 running" in run_locally(machine)

    script, drop_in_of_snapshots = snapshots_of_the_guide()
    machine.write("/usr/local/sbin/gns3-snapshot", script)
    machine.run("chmod 755 /usr/local/sbin/gns3-snapshot")
    machine.write(drop_in, drop_in_of_snapshots)
    machine.run("systemctl daemon-reload")
    for night in range(2):
        machine.run(f"echo {night} > {folder}/new")
        told = run_locally(machine)
        assert "full, from snapshot" in told, told
        assert "1 projects: 1 stored" in told
        assert not machine.succeeds("mountpoint --quiet /run/gns3-snapshot || test -e /srv/copy")
    machine.run("mv /usr/local/sbin/gns3-snapshot /srv/; systemctl reset-failed")
    machine.run(f"echo without > {folder}/new")
    told = run_locally(machine)
    assert "has no new snapshot of /opt/gns3/projects" in told, told
    assert shown(machine, "filestore-gns3-local.service", "ExecMainStatus") == "5"
    machine.run(f"rm {drop_in}; systemctl daemon-reload; systemctl reset-failed")


def snapshots_of_the_guide() -> tuple[str, str]:
    """The script and the drop-in of the guide. The script has other commands in the place of those of LVM."""
    section = FULL.partition("## Snapshots of LVM and ZFS")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", section, re.DOTALL)
    (drop_in,) = re.findall(r"```ini\n(.*?)```", section, re.DOTALL)
    for command, other in LVM.items():
        assert command in script
        script = script.replace(command, other)
    return script, drop_in


def test_unit_for_folders_needs_no_server_that_runs(
    machines: list[Machine], lab: LabServer, relays: list["subprocess.Popen[bytes]"]
) -> None:
    machine = machines[2]
    lab.upload_image("router.qcow2", b"QFI\xfb" + bytes(1 << 20))
    plain_id, with_image_id = lab.make_project("plain"), lab.make_project("with an image")
    lab.add_qemu(with_image_id, "vm", hda_disk_image="router.qcow2")
    lab.close(with_image_id)
    assert "2 projects: 2 stored" in sign_in(machine, lab)  # exports, and the image
    lab.kill()
    relays[-1].kill()
    relays[-1].wait()
    copy_projects(machine, lab)
    machine.run(block("units", FULL))
    said = run_locally(machine)
    assert "2 projects: 2 stored" in said, said
    assert shown(machine, "filestore-gns3-local.service", "Result") == "success"
    machine.run(f"touch /opt/gns3/projects/{plain_id}/new")
    assert "1 stored" in (said := run_locally(machine)), said
    assert "1 unchanged" in said
    as_user = "runuser -u filestore-gns3 -- env XDG_CONFIG_HOME=/etc/filestore-gns3 filestore gns3"
    [login] = json.loads(f"[{machine.run(f'{as_user} servers --json').strip()}]")
    told = machine.run(f"{as_user} status --from {login['server_id']}")  # 0: nothing needs attention
    assert "2 projects, full backups" in told
