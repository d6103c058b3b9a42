"""`filestore setup`: three machines by three commands, and what is left when one of them is killed."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordinator.runtime.config import CoordinatorFiles
from deploy.dev.processes import free_ports, wait_until
from node.base.config import NodeFiles
from tests.cluster.harness import FILESTORE, run_filestore

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
LINE = re.compile(r"filestore setup --join '(FSS1\.[^']+)'")


@dataclass
class Machine:
    """A stand-in: a directory, four ports, and the processes that its operator keeps running."""

    number: int
    data: Path
    ports: list[int]

    def __post_init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def options(self) -> list[str]:
        names = ("--peer-port", "--api-port", "--node-peer-port", "--node-api-port")
        ports = [word for name, port in zip(names, self.ports, strict=True) for word in (name, str(port))]
        return ["--data", str(self.data), "--name", f"m{self.number}", "--address", "127.0.0.1", *ports]

    def setup(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
        return run_filestore(("setup", *self.options, *arguments), environment(), stdin.encode(), 240)

    def set_up(self, *arguments: str, stdin: str = "") -> str:
        done = self.setup(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def first(self, *arguments: str) -> list[str]:
        """The texts for others."""
        return LINE.findall(self.set_up("--cluster", "lab", "--development", *arguments))

    def run(self, *roles: str) -> None:
        """What setup said to run."""
        for role in roles or ("coordinator", "node"):
            command = [FILESTORE, role, "run", "--data", str(self.data / role)]
            with (self.data / f"{role}.log").open("ab") as log:
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def token(self) -> str:
        told = run_filestore(
            ("token", "setup", "--data", str(self.data / "coordinator")), environment()
        ).stdout.decode()
        (text,) = LINE.findall(told)
        return str(text)

    def status(self) -> str:
        coordinator = self.data / "coordinator"
        return run_filestore(
            ("status",),
            environment()
            | {
                "FILESTORE_URL": f"https://127.0.0.1:{self.ports[3]} https://127.0.0.1:{self.ports[1]}",
                "FILESTORE_CA": str(coordinator / "ca.pem"),
                "FILESTORE_TOKEN_FILE": str(coordinator / "admin.token"),
            },
        ).stdout.decode()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FILESTORE_")}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[list[Machine]]:
    ports = free_ports(12)
    made = [Machine(at + 1, tmp_path / f"m{at + 1}", ports[4 * at : 4 * at + 4]) for at in range(3)]
    yield made
    for machine in made:
        machine.stop()


def healthy(machine: Machine, nodes: int) -> bool:
    told = machine.status()
    return "lab: healthy" in told and all(f"m{number} " in told for number in range(1, nodes + 1))


def run_healthy(first: Machine) -> None:
    """What the first setup said to run, as long as it takes."""
    first.run()
    wait_until(lambda: "m1 " in first.status(), what="the first machine", timeout_s=120)


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
    wait_until(lambda: healthy(first, 2), what="healthy", timeout_s=120)
    assert second.setup("--join", first.token(), "--node-only").returncode == 0
    assert "--node-only" in machines[2].setup("--node-only").stderr.decode()


def test_machine_that_is_set_up_is_taken_to_no_other_address_by_a_setup(machines: list[Machine]) -> None:
    first = machines[0]
    first.first("--machines", "1")
    refused = first.setup("--address", "127.0.0.2")
    assert refused.returncode == 5
    assert "known at 127.0.0.1" in refused.stderr.decode()


def test_text_of_another_cluster_is_refused_where_there_is_one(machines: list[Machine]) -> None:
    first, second, _ = machines
    first.first("--machines", "1")
    (text,) = second.first("--machines", "2")
    refused = first.setup("--join", text)
    assert refused.returncode == 5
    assert "of another cluster" in refused.stderr.decode()


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
