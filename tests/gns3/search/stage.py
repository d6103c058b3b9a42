"""The processes of the search: a store whose clocks can be moved, cloned lab servers, and a fresh one."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.clocks import Clocks
from tests.cluster.harness import Cluster
from tests.cluster.small_disks import small_disk
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator
from tests.gns3.search.model import Lab, Model, State

LABS: Final = ("one", "two")
FRESH: Final = "fresh"
DISK_BYTES: Final = 320 << 20
FILES_MAX: Final = 60_000
DEADLINE_S: Final = 8
COMMAND_S_MAX: Final = 100.0  # several times the deadline, since two cores do all this
LARGE: Final = 500  # files of a large project, so that unpacking takes a while


class Fault(Exception):
    """What must not happen has happened."""


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended. `code` is negative if it was killed."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """The records of --json; the last one of a command that was killed may be cut off."""
        lines = self.out.splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]


@dataclass
class Stage:
    """What operations work on. `recover` undoes what a strike has done."""

    directory: Path
    dice: random.Random
    cluster: Cluster
    clocks: Clocks
    servers: Mapping[str, LabServer]
    operator: Operator
    strikes: Collection[str] = ()  # the kinds that may come
    model: Model = field(default_factory=Model)
    history: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    shift_s: int = 0  # of the clocks of the cluster
    dead: list[str] = field(default_factory=list)  # lab servers that were killed
    stopped: list[str] = field(default_factory=list)  # those that hang
    down: list[Member] = field(default_factory=list)

    def command(self, *arguments: str, strike: "Strike | None" = None) -> Said:
        """One command to its end, and what comes over it in the middle. Raises Fault."""
        began_s = time.monotonic()
        process = self.operator.start(*arguments, "--json", "--deadline", str(DEADLINE_S))
        try:
            if strike is not None:
                strike(process)
            out, err = process.communicate(timeout=COMMAND_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Fault(f"(d) {arguments} did not end within {COMMAND_S_MAX:.0f} s") from None
        finally:
            self.recover()
        said = Said(process.returncode, out.decode(), err.decode())
        self.outcomes[f"{arguments[0]} {said.code}"] += 1
        self.note(f"{arguments}: {said.code} in {time.monotonic() - began_s:.1f} s {said.err[-600:]}")
        if "Traceback" in said.err or "asynchronous generator" in said.err:
            raise Fault(f"(d) {arguments} ended in a traceback: {said.err[-1500:]}")
        return said

    def note(self, text: str) -> None:
        """For people who look for the cause."""
        self.history.append(f"{time.strftime('%H:%M:%S')} {text.strip()}")

    def recover(self) -> None:
        """Start again what was killed."""
        while self.stopped:
            self.servers[self.stopped.pop()].send(signal.SIGCONT)
        while self.dead:
            self.servers[self.dead.pop()].start()
        if self.down:
            self.cluster.restart(*self.down)
            self.down.clear()
            self.cluster.wait_healthy()
            self.move_clocks(self.shift_s)

    def move_clocks(self, shift_s: int) -> None:
        """Of all members of the cluster."""
        self.shift_s = shift_s
        for member in self.cluster.members:
            self.clocks.move(self.cluster.pid(member), shift_s)
        listed = lambda: self.cluster.get("/project-files").status == 200  # noqa: E731
        wait_until(listed, what="the store, whose clocks were moved", timeout_s=90)

    def state_of(self, server: str, project_id: str) -> State:
        """What lies on the disk of a server; of a topology that cannot be read there are no nodes."""
        root = self.servers[server].projects_path / project_id
        files = {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.is_file() and ".gns3" not in path.name
        }
        nodes: set[str] = set()
        for path in root.glob("*.gns3"):
            text = path.read_text()
            nodes |= {node["name"] for node in json.loads(text)["topology"]["nodes"]} if text else set()
        return State(files, frozenset(nodes))

    def look(self) -> None:
        """Learn which backups the store has."""
        listed = self.operator.project_files(status="available")
        tagged = [each for each in listed if str(each["version_tag"]).startswith("gns3-")]
        self.model.found({each["file_uuid"]: each["project_id"] for each in tagged})

    def stored(self) -> set[str]:
        """The file_uuids of all files that are in the store."""
        return {str(each["file_uuid"]) for each in self.operator.project_files(status="available")}


Strike = Callable[["subprocess.Popen[bytes]"], None]


@contextmanager
def opened(directory: Path, labs: int) -> Iterator[Stage]:
    """A stage with two labs on each of so many servers, which are clones."""
    clocks = Clocks(directory)
    os.environ.update(clocks.environment)
    program = gns3server()
    with ExitStack() as stack:
        stores = stack.enter_context(Cluster(directory / "store"))
        servers = {name: LabServer(program, directory / name) for name in (*LABS[:labs], FRESH)}
        for server in servers.values():
            stack.enter_context(small_disk(server.projects_path, DISK_BYTES, FILES_MAX))
        first = stack.enter_context(servers[LABS[0]])
        made = {name: make_lab(first, name, large) for name, large in (("large lab", True), ("lab", False))}
        for name in LABS[1:labs]:
            shutil.copytree(first.projects_path, servers[name].projects_path, dirs_exist_ok=True)
        operator = Operator(stores, directory / "operator")
        for name, server in servers.items():
            if server is not first:
                stack.enter_context(server)
            operator.login(name, server)
        stage = Stage(directory, random.Random(), stores, clocks, servers, operator)
        for server_name in LABS[:labs]:
            for name, project_id in made.items():
                state = stage.state_of(server_name, project_id)
                stage.model.labs.append(Lab(server_name, project_id, name, state))
        yield stage
        stage.recover()
        stage.move_clocks(0)


def make_lab(server: LabServer, name: str, large: bool) -> str:
    """A project; its id."""
    files = {f"project-files/vpcs/{number}/startup.vpc": os.urandom(64) for number in range(8)}
    if large:
        files |= {f"project-files/docker/etc/{number}": os.urandom(2048) for number in range(LARGE)}
        files |= {f"project-files/qemu/{number}/disk.qcow2": os.urandom(6 << 20) for number in range(4)}
    return server.make_project(name, files)
