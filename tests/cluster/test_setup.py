"""`filestore setup`: three machines by three commands, and what is left when one of them is killed."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ca.tls import client_context, read_roots
from coordinator.storage.config import CoordinatorFiles
from deploy.processes import start_child, wait_until
from deploy.setup.plan import MachinePlan
from deploy.setup.running import Children, is_held
from node.base.config import NodeFiles
from tests.cluster.harness import FILESTORE, run_filestore
from tests.cluster.set_up_machines import LINE, Machine, environment, healthy, machines, run_healthy

__all__ = ["machines"]  # a fixture
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_three_machines_by_three_commands(machines: list[Machine]) -> None:
    first, second, third = machines
    texts = first.first()
    assert len(texts) == 2
    run_healthy(first)
    told = second.set_up("--join", "-", stdin=f"{texts[0]}\n")
    assert "coordinator m2 and node m2 of the cluster lab" in told
    second.run()
    used = third.setup("--join", texts[0])
    assert used.returncode == 3
    assert os.listdir(third.data / "coordinator") == []
    assert texts[0].split(".")[2] not in (used.stdout + used.stderr).decode()
    file = third.data.parent / "text"
    file.write_text(texts[1])
    third.set_up("--join-file", str(file))
    third.run()
    wait_until(lambda: healthy(first, 3), what="healthy", timeout_s=120)
    for machine in machines:  # all is there: nothing changes, and it says so
        told = machine.set_up()
        assert f"coordinator m{machine.number} and node m{machine.number} of the cluster lab" in told
        assert not LINE.findall(told)
    for path in (machine.data for machine in machines):
        assert not (path / "coordinator" / "setup.begun").exists()
        assert not (path / "node" / "setup.token").exists()


def test_machine_becomes_a_node_only(machines: list[Machine]) -> None:
    first, second, _ = machines
    (text,) = first.first("--machines", "2", "--replicas", "1")
    run_healthy(first)
    told = second.set_up("--join", text, "--node-only")
    assert "This machine is node m2 of the cluster lab" in told
    assert not (second.data / "coordinator").exists()
    second.run("node")
    wait_until(lambda: is_held(second.data / "node"), what="the lock of the node", timeout_s=60)
    wait_until(lambda: healthy(first, 2), what="healthy", timeout_s=120)
    assert second.setup("--join", first.token(), "--node-only").returncode == 0
    assert "--node-only" in machines[2].setup("--node-only").stderr.decode()
    used = machines[2].setup("--join", text, "--node-only")
    assert used.returncode == 3
    assert "`filestore token setup` on a machine of the cluster creates another" in used.stderr.decode()


def test_process_that_its_operator_starts_at_the_same_moment_is_left_alone(machines: list[Machine]) -> None:
    """The other process holds the lock when that of setup tries to get it, and does not serve yet."""
    first, *_ = machines
    first.first("--machines", "1", "--replicas", "1")
    first.run("coordinator")
    peer, api, node_peer, node_api = first.ports
    plan = MachinePlan(
        name="m1",
        address="127.0.0.1",
        data=first.data,
        peer_port=peer,
        api_port=api,
        node_peer_port=node_peer,
        node_api_port=node_api,
    )
    files = NodeFiles(plan.node_data)
    with Children(plan, has_units=False) as members, ThreadPoolExecutor(1) as pool:
        with files.lock_directory():
            arguments = ["node", "run", "--data", str(files.data)]
            members._children["node"] = start_child("node", arguments, first.data / "child.log")
            waiting = pool.submit(members.wait_ready, "node", client_context(read_roots(files.root)))
            wait_until(lambda: not members._children, what="its child to be given up", timeout_s=60)
            assert not waiting.done()
        first.run("node")
        waiting.result(timeout=120)
        assert members.remaining_commands() == []
    assert first.processes[-1].poll() is None


def test_node_that_stays_gets_a_coordinator_of_another_name(machines: list[Machine]) -> None:
    """Step 4 of "All coordinators are lost" in docs/restore.md."""
    first, second, _ = machines
    (text,) = first.first("--machines", "2", "--replicas", "1")
    run_healthy(first)
    second.set_up("--join", text, "--node-only")
    assert "which cannot change" in second.setup("--node-only", "--name", "c2").stderr.decode()
    told = second.set_up("--join", first.token(), "--name", "c2")
    assert "This machine is coordinator c2 and node m2 of the cluster lab" in told
    assert NodeFiles(second.data / "node").read_config().id == "m2"
    assert "which cannot change" in second.setup("--name", "c3").stderr.decode()


def test_node_on_a_new_disk_is_made_again_by_setup_with_its_old_name(machines: list[Machine]) -> None:
    """ "Replace a disk" in docs/machines.md."""
    first, second, _ = machines
    (text,) = first.first("--machines", "2", "--replicas", "1")
    run_healthy(first)
    second.set_up("--join", text)
    second.run()
    wait_until(lambda: healthy(first, 2), what="healthy", timeout_s=120)
    node = second.processes.pop()
    node.kill()
    node.wait()
    shutil.rmtree(second.data / "node")
    remove = ("node", "remove", "m2", "--force", "--is-gone")

    def is_removed() -> bool:  # it has to be silent for some seconds
        return run_filestore(remove, first.access).returncode == 0

    wait_until(is_removed, what="the removal", timeout_s=60)
    assert "node m2 of the cluster lab" in second.set_up()
    second.run("node")
    wait_until(lambda: healthy(first, 2), what="healthy", timeout_s=120)


def test_machine_that_is_set_up_is_taken_to_no_other_address_by_a_setup(machines: list[Machine]) -> None:
    first = machines[0]
    first.first("--machines", "1")
    refused = first.setup("--address", "127.0.0.2")
    assert refused.returncode == 5
    assert "have the address 127.0.0.1" in refused.stderr.decode()


def test_machine_that_is_set_up_gets_no_other_name_by_a_setup(machines: list[Machine]) -> None:
    first = machines[0]
    first.first("--machines", "1")
    told = first.set_up("--no-start")
    assert re.search(r"Console: +https://127\.0\.0\.1:\d+/console/$", told, re.MULTILINE)
    shown = re.search(r"Sign in there: .*`cat (\S+)`", told)
    assert shown is not None
    assert Path(shown[1]).read_text().count(".") == 2  # a token
    assert "filestore login https://127.0.0.1:" in told
    refused = first.setup("--name", "other")
    assert refused.returncode == 5
    assert "named m1" in refused.stderr.decode()


def test_text_of_another_cluster_is_refused_where_there_is_one(machines: list[Machine]) -> None:
    first, second, _ = machines
    first.first("--machines", "1")
    (text,) = second.first("--machines", "2")
    refused = first.setup("--join", text)
    assert refused.returncode == 5
    assert "belongs to another cluster" in refused.stderr.decode()


STEPS: dict[str, Callable[[Machine], Path]] = {
    "began": lambda machine: machine.data / "coordinator" / "setup.begun",
    "log": lambda machine: machine.data / "coordinator" / "log",
    "certificate": lambda machine: CoordinatorFiles(machine.data / "coordinator").credential_path,
    "coordinator": lambda machine: CoordinatorFiles(machine.data / "coordinator").config,
    "started": lambda machine: CoordinatorFiles(machine.data / "coordinator").instance,
    "token": lambda machine: machine.data / "node" / "setup.token",
    "key": lambda machine: machine.data / "node" / "joining.key",
    "joined": lambda machine: NodeFiles(machine.data / "node").credential_path,
    "node": lambda machine: NodeFiles(machine.data / "node").config,
    "node started": lambda machine: NodeFiles(machine.data / "node").instance,
}


def killed_at(machine: Machine, step: str, *arguments: str) -> None:
    """Begin a setup, and end it without a word as soon as that file is there. Its children end with it."""
    process = subprocess.Popen(
        [FILESTORE, "setup", *machine.options, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    path = STEPS[step](machine)
    while not path.exists() and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate()
    assert path.exists() or step in {"token", "key"}, output.decode()


@pytest.mark.parametrize("step", STEPS)
def test_first_machine_goes_on_after_a_kill(machines: list[Machine], step: str) -> None:
    first = machines[0]
    killed_at(first, step, "--cluster", "lab", "--development", "--replicas", "1")
    assert len(first.first("--replicas", "1")) == 2
    assert (first.data / "coordinator" / "admin.token").exists()
    first.run()
    wait_until(lambda: healthy(first, 1), what="healthy", timeout_s=120)


@pytest.mark.parametrize("step", STEPS)
def test_other_machine_goes_on_after_a_kill_by_the_same_text(machines: list[Machine], step: str) -> None:
    first, second, _ = machines
    text, _ = first.first("--replicas", "1")
    run_healthy(first)
    killed_at(second, step, "--join", text)
    second.set_up("--join", text)
    second.run()
    wait_until(lambda: healthy(first, 2), what="healthy", timeout_s=120)


@pytest.mark.parametrize("step", ["began", "coordinator", "started"])
def test_other_machine_goes_on_after_a_kill_without_or_with_another_text(
    machines: list[Machine], step: str
) -> None:
    first, second, _ = machines
    text, other = first.first("--replicas", "1")
    run_healthy(first)
    killed_at(second, step, "--join", text)
    if step == "started":
        second.set_up()
    else:
        second.set_up("--join", other)
    second.run()
    wait_until(lambda: healthy(first, 2), what="healthy", timeout_s=120)
