"""Stand-ins for machines that `filestore setup` makes members of a cluster, all of them on this one."""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.processes import free_ports, wait_until
from tests.cluster.harness import FILESTORE, run_filestore

LINE = re.compile(r"filestore setup --join <<< '(FSS1\.[^']+)'")


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

    @property
    def access(self) -> dict[str, str]:
        """The environment of an administrator of its cluster."""
        coordinator = self.data / "coordinator"
        return environment() | {
            "FILESTORE_URL": f"https://127.0.0.1:{self.ports[3]} https://127.0.0.1:{self.ports[1]}",
            "FILESTORE_CA": str(coordinator / "ca.pem"),
            "FILESTORE_TOKEN_FILE": str(coordinator / "admin.token"),
        }

    def status(self) -> str:
        return run_filestore(("status",), self.access).stdout.decode()


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
