"""The units of docs/gns3-nightly.md on a machine with the package: set up as it says, they work."""

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
from tests.machines.bed import BRIDGE, Machine
from tests.machines.operator import ACCESS, WAIT_S, shown
from tests.sources import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

RELAY = Path(__file__).parent / "programs" / "relay.py"
GUIDE = (ROOT / "docs" / "gns3-nightly.md").read_text(encoding="utf-8")
ADDRESS, PORT = "10.0.0.9", 3080  # as the guide has them
WATCH_LOG = "journalctl -o cat -u filestore-gns3-watch.service"
METRICS = "cat /var/lib/prometheus/node-exporter/filestore_gns3_*.prom"


@pytest.fixture
def lab(machines: list[Machine], tmp_path: Path) -> Iterator[LabServer]:
    """A GNS3 server of this system, which the machines reach where the guide has one."""
    machine, path = machines[0], tmp_path / "gns3.sock"
    with ExitStack() as stack:
        started = stack.enter_context(LabServer(gns3server(), tmp_path / "lab"))
        give = ("ip", "addr", "replace", f"{ADDRESS}/24", "dev", BRIDGE)
        subprocess.run(machine.command_beside(*give), check=True)
        relay = (sys.executable, str(RELAY))

        def start(*command: str) -> None:
            stack.callback(stack.enter_context(subprocess.Popen(command)).kill)

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


def block(group: str) -> str:
    """What the guide says there."""
    found = re.search(rf"<!-- test: {group} -->\n```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert found is not None
    return found[1]


def test_units_of_the_guide_back_up_and_prune_whatever_fails(machines: list[Machine], lab: LabServer) -> None:
    machine = machines[0]
    lab.upload_image("router.qcow2", b"QFI\xfb" + bytes(1 << 20))
    good_id, bad_id = lab.make_project("good"), lab.make_project("bad")
    lab.add_qemu(good_id, "vm", hda_disk_image="router.qcow2")
    lab.close(good_id)
    machine.run(f"{ACCESS}{block('token')}cp /var/lib/filestore/coordinator/ca.pem .")
    machine.write("/srv/lab.password", lab.password_file.read_text())
    machine.write("/srv/lab.compute-password", lab.compute_password_file.read_text())
    machine.run(block("night"))
    told = machine.run("journalctl -o cat -u filestore-gns3.service")
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
