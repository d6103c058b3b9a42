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
from tests.cluster.small_disks import move_to_small_disks, small_disk
from tests.gns3.installed import VERSION_2, gns3server
from tests.gns3.lab_server import LabServer, LabServer2
from tests.gns3.operator import Operator
from tests.gns3.search.model import Lab, Model, State, Target

LABS: Final = ("one", "two", "old")  # the last is one of GNS3 2.2
OLD: Final = "old"
FRESH: Final = "fresh"
DISK_BYTES: Final = 320 << 20
NODE_DISK_BYTES: Final = 1 << 30
FILES_MAX: Final = 60_000
DEADLINE_S: Final = 8
COMMAND_S_MAX: Final = 180.0  # several times the deadline; GNS3 2.2 has 120 s for its list of images
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
    outcomes: Counter[str] = field(default_factory=Counter)
    shift_s: int = 0  # of the clocks of the cluster
    dead: list[str] = field(default_factory=list)  # lab servers that were killed
    stopped: list[str] = field(default_factory=list)  # those that hang
    down: list[Member] = field(default_factory=list)
    ballasts: list[Path] = field(default_factory=list)  # what fills the disks of nodes

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

    def remove_images(self, server: str) -> None:
        """Those of a server of GNS3 3."""
        for name in self.servers[server].images():
            self.servers[server].call("DELETE", f"/images/{name}")

    def note(self, text: str) -> None:
        """For people who look for the cause."""
        with (self.directory / "history.txt").open("a") as history:
            history.write(f"{time.strftime('%H:%M:%S')} {text.strip()}\n")

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
        if self.ballasts:
            while self.ballasts:
                self.ballasts.pop().unlink()
            wait_until(self._has_room, what="nodes that have room again", timeout_s=30)
        wait_until(self._is_idle, what="the end of uploads whose command was killed", timeout_s=90)

    def _is_idle(self) -> bool:
        """Whether nothing that was sent is still being stored: it would be a backup later."""
        metrics = [self.cluster.get("/metrics", node=node, token=None).body for node in self.cluster.nodes]
        return all(b"\nfilestore_uploads_in_progress 0.0\n" in each for each in metrics)

    def _has_room(self) -> bool:
        nodes = self.cluster.get("/cluster/status").json["nodes"]
        return {node["disk"] for node in nodes} == {"ok"}

    def move_clocks(self, shift_s: int) -> None:
        """Of all members of the cluster."""
        self.shift_s = shift_s
        for member in self.cluster.members:
            self.clocks.move(self.cluster.pid(member), shift_s)
        listed = lambda: self.cluster.get("/project-files").status == 200  # noqa: E731
        wait_until(listed, what="the store, whose clocks were moved", timeout_s=90)

    def state_of(self, server: str, project_id: str) -> State:
        """What lies on the disk of a server; of a topology that cannot be read there are no nodes.

        GNS3 3 writes checksums of images there by itself when a project is opened.
        """
        root = self.servers[server].projects_path / project_id
        files = {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.is_file() and ".gns3" not in path.name and path.suffix != ".md5sum"
        }
        texts = [text for path in root.glob("*.gns3") if (text := path.read_text())]
        nodes = [node for text in texts for node in json.loads(text)["topology"]["nodes"]]
        disks = [each["properties"] for each in nodes if each["properties"].get("hda_disk_image")]
        images = {(each["hda_disk_image"], each["hda_disk_image_md5sum"]) for each in disks}
        return State(files, frozenset(node["name"] for node in nodes), frozenset(images))

    def target(self, server: str) -> Target:
        """A lab server as the place where a backup is to go."""
        md5s = frozenset(self.stored_md5s())
        return Target(self.servers[server].api == "v2", self.servers[server].images(), md5s)

    def stored_md5s(self) -> set[str]:
        """The images in the store."""
        listed = self.cluster.get("/vms?limit=1000&status=available").json["vms"]
        return {str(each["md5"]) for each in listed}

    def look(self) -> None:
        """Learn which backups the store has."""
        self.model.found(self._listed())

    def begin_run(self, server: str, *, is_open: bool) -> None:
        """A backup of this server begins."""
        self.model.begin_run(server, self._listed(), is_open=is_open)

    def _listed(self) -> dict[str, str]:
        listed = self.operator.project_files(status="available")
        tagged = [each for each in listed if str(each["version_tag"]).startswith("gns3-")]
        return {each["file_uuid"]: each["project_id"] for each in tagged}

    def stored(self) -> set[str]:
        """The file_uuids of all files that are in the store."""
        return {str(each["file_uuid"]) for each in self.operator.project_files(status="available")}


Strike = Callable[["subprocess.Popen[bytes]"], None]


@contextmanager
def opened(directory: Path, labs: int) -> Iterator[Stage]:
    """A stage with two labs on each of so many servers, which are clones."""
    clocks = Clocks(directory)
    os.environ.update(clocks.environment)
    (directory / "store-aside").mkdir()
    with ExitStack() as stack:
        disks = stack.enter_context(ExitStack())
        stores = stack.enter_context(Cluster(directory / "store"))
        aside = directory / "store-aside"
        move_to_small_disks(stores, stores.nodes, disks, aside=aside, size_bytes=NODE_DISK_BYTES)
        servers = {name: _server(name, directory / name) for name in (*LABS[:labs], FRESH)}
        for server in servers.values():
            stack.enter_context(small_disk(server.projects_path, DISK_BYTES, FILES_MAX))
        origin = LABS[labs - 1]  # newer servers read the projects of older ones
        first = stack.enter_context(servers[origin])
        made = {name: make_lab(first, name, large) for name, large in (("large lab", True), ("lab", False))}
        for name in LABS[: labs - 1]:
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
                stage.model.labs.append(Lab(server_name, project_id, name, state, server_name == OLD))
        yield stage
        stage.recover()
        stage.move_clocks(0)


def _server(name: str, directory: Path) -> LabServer:
    return LabServer2(gns3server(VERSION_2), directory) if name == OLD else LabServer(gns3server(), directory)


def make_lab(server: LabServer, name: str, large: bool) -> str:
    """A project; its id."""
    files = {f"project-files/vpcs/{number}/startup.vpc": os.urandom(64) for number in range(8)}
    if large:
        files |= {f"project-files/docker/etc/{number}": os.urandom(2048) for number in range(LARGE)}
        files |= {f"project-files/qemu/{number}/disk.qcow2": os.urandom(6 << 20) for number in range(4)}
    return server.make_project(name, files)
