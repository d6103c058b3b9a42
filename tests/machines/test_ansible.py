"""The Ansible role makes a cluster of three machines by ssh, then changes nothing, and upgrades it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian_packages import require
from tests.machines.bed import BRIDGE, INCLUDED, Machine, bed, make_base
from tests.machines.conftest import PROGRAMS, SUITE
from tests.machines.operator import copy_token, shown, until_healthy
from tests.sources import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

ANSIBLE = "ansible-core==2.19.4"  # too large for everybody's environment
ROLE = ROOT / "deploy" / "ansible"
INCLUDED_HERE = (*INCLUDED, "openssh-server", "python3-apt")
CONTROLLER = "10.0.0.254/24"
PLAY_TIMEOUT_S = 600
RECAP = re.compile(r"^(m\d) +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0 ", re.MULTILINE)


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its programs lie, in an environment of their own. Skips the test where it cannot be had."""
    require({"ssh": "openssh-client"})
    place = tmp_path_factory.mktemp("ansible")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", ANSIBLE]
    if (done := subprocess.run(pip, capture_output=True, text=True, check=False)).returncode != 0:
        pytest.skip(f"cannot install {ANSIBLE}: {done.stderr[-300:]}")
    return place / "bin"


@pytest.fixture(scope="module")
def managed(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Iterator[list[Machine]]:
    """Three machines that nothing was done to, but that their operator reaches them by ssh."""
    require(PROGRAMS)
    base = make_base(tmp_path_factory.mktemp("base"), suite=SUITE, included=INCLUDED_HERE)
    with bed(tmp_path_factory.mktemp("machines"), base) as booted:
        add = booted[0].command_beside("ip", "address", "add", CONTROLLER, "dev", BRIDGE)
        subprocess.run(add, check=True)
        for machine in booted:
            machine.write("/srv/key.pub", key.with_suffix(".pub").read_bytes())
            machine.run("mkdir -p ~root/.ssh && cp key.pub ~root/.ssh/authorized_keys")
        yield booted


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operator's."""
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


class Operator:
    """Who runs the play, on a machine beside the three."""

    def __init__(self, programs: Path, machines: list[Machine], key: Path, place: Path) -> None:
        self._programs, self._machines, self._key, self._place = programs, machines, key, place
        hosts = "".join(
            f"{machine.name} ansible_host={machine.address} filestore_zone=rack-{machine.name}\n"
            for machine in machines
        )
        self._inventory = place / "inventory.ini"
        self._inventory.write_text(
            f"[filestore]\n{hosts}\n[filestore:vars]\nansible_user=root\nfilestore_cluster=lab\n"
        )

    def play(self, package: Path) -> dict[str, int]:
        """How much it has changed on each machine."""
        ssh = (
            f"-i {self._key} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ControlMaster=no"
        )
        command = [
            str(self._programs / "ansible-playbook"),
            *(
                "--inventory",
                str(self._inventory),
                "--private-key",
                str(self._key),
                f"--ssh-common-args={ssh}",
            ),
            *("--extra-vars", f"filestore_package={package}", "-v", str(ROLE / "site.yml")),
        ]
        done = subprocess.run(
            self._machines[0].command_beside(*command),
            env=os.environ | {"HOME": str(self._place), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PLAY_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        assert "FSS1." not in done.stdout
        return {name: int(changed) for name, changed in RECAP.findall(done.stdout)}


def test_role_makes_a_cluster_that_it_does_not_change_again_but_upgrades(
    ansible: Path, managed: list[Machine], key: Path, package: Path, tmp_path: Path
) -> None:
    operator = Operator(ansible, managed, key, tmp_path)
    changed = operator.play(package)
    assert list(changed) == ["m1", "m2", "m3"]
    assert all(changed.values())
    copy_token(managed)
    until_healthy(managed[1])
    for machine in managed:
        assert machine.run("dpkg --verify filestore") == ""
        told = json.loads(machine.run("cat /var/lib/filestore/node/node.json"))
        assert told["zone"] == f"rack-{machine.name}"
    assert operator.play(package) == {"m1": 0, "m2": 0, "m3": 0}
    before = [shown(machine, "filestore-node", "MainPID") for machine in managed]
    assert operator.play(newer(package, tmp_path)) == {"m1": 3, "m2": 2, "m3": 2}  # and a snapshot
    for machine, pid in zip(managed, before, strict=True):
        assert shown(machine, "filestore-node", "MainPID") != pid
        assert machine.run("dpkg-query -W -f '${Version}' filestore").endswith("+newer")
    until_healthy(managed[2])


def newer(package: Path, place: Path) -> Path:
    """The same with a later version."""
    root, made = place / "root", place / f"newer_{package.name}"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(root)], check=True)
    control = root / "DEBIAN" / "control"
    control.write_text(re.sub(r"^(Version: .*)$", r"\1+newer", control.read_text(), flags=re.MULTILINE))
    build = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(root), str(made)]
    subprocess.run(build, check=True, capture_output=True)
    return made
