"""A whole cluster on this machine, for `filestore dev`.

Coordinators and nodes are child processes on loopback.

Directory: layout.json (members and ports), one directory per member, logs/, and while everything is ready
cluster.json, admin.token and curl.conf. A first start that failed leaves nothing worth keeping, so the next
one starts from scratch.

Tested by tests/cluster/test_development.py.
"""

import asyncio
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import click
import msgspec

from ca.errors import Conflict, FilestoreError
from ca.secretfiles import write_durable, write_secret
from ca.tls import client_context
from coordinator.admin import setup
from deploy.processes import (
    LOOPBACK,
    OURS,
    Child,
    Flag,
    free_ports,
    is_ready,
    start_child,
    stop_children,
    wait_until,
)
from filestore_client import AsyncClient
from filestore_client.base.contexts import CLUSTER_FILE, ClusterFile, ClusterMember
from metadata.model.records import CoordinatorRecord
from node.membership.join import join
from runtime.json_files import decode_foreign

CLUSTER_NAME = "development"
COORDINATORS = 3
START_TIMEOUT_S = 60.0
WATCH_S = 0.2


class Member(msgspec.Struct, frozen=True):
    """A coordinator or node; `role` is the word of its command."""

    id: str
    role: str
    api_port: int
    peer_port: int

    @property
    def url(self) -> str:
        """Return the URL of its API."""
        return f"https://{LOOPBACK}:{self.api_port}"


class Layout(msgspec.Struct, frozen=True):
    """The decisions of the first start. `complete` once every member is set up."""

    replicas: int
    write_quorum: int
    members: list[Member]
    complete: bool = False

    def of_role(self, role: str) -> list[Member]:
        """The coordinators or the nodes."""
        return [member for member in self.members if member.role == role]


def _silent(_line: str) -> None:
    """Ignore a line: no user watches the start of a cluster in a test."""


class DevelopmentCluster:
    """Three coordinators and some nodes in one directory. Not for several threads."""

    def __init__(
        self,
        directory: Path,
        *,
        base_port: int | None = None,
        coordinator_count: int = COORDINATORS,
        node_count: int = 3,
        replicas: int = 3,
        write_quorum: int = 2,
        node_options: Sequence[str] = (),
        coordinator_options: Sequence[str] = (),
        tell: Callable[[str], None] = _silent,
    ) -> None:
        """Prepare a cluster.

        `node_options`: of `filestore node run`, in addition to `--data`; `coordinator_options`: of the other.
        `tell` receives a line on each step of the start.
        """
        self.directory = directory
        self._tell = tell
        self._options = {"node": node_options, "coordinator": coordinator_options}
        self.children: dict[str, Child] = {}
        self.programs: dict[str, Sequence[str]] = {}  # of members that run another version, the command
        self.stopping = Flag()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.cluster_file.unlink(missing_ok=True)
        names = [("coordinator", number + 1) for number in range(coordinator_count)]
        names += [("node", number + 1) for number in range(node_count)]
        self.layout = self._load_layout() or self._new_layout(base_port, names, replicas, write_quorum)

    @property
    def cluster_file(self) -> Path:
        """There while everything is ready."""
        return self.directory / "cluster.json"

    @property
    def ca(self) -> Path:
        """The root certificate."""
        return self.data(self.layout.of_role("coordinator")[0]) / "ca.pem"

    @property
    def token_file(self) -> Path:
        """An admin token, new at each start."""
        return self.directory / "admin.token"

    @property
    def curl_file(self) -> Path:
        """Root certificate and admin token for `curl -K`, so that the token is in no argument."""
        return self.directory / "curl.conf"

    def data(self, member: Member) -> Path:
        """The directory of a member."""
        return self.directory / member.id

    def start(self) -> None:
        """Start everyone, wait until the cluster is healthy, write cluster.json. Raises FilestoreError."""
        first = not self.layout.complete
        if first:
            self._tell("Making keys and certificates.")
            self._set_up_coordinators()
        early = self.layout.of_role("coordinator") if first else self.layout.members
        self._tell(f"Starting {', '.join(member.id for member in early)}.")
        for member in early:
            self.start_member(member)
        self._wait_ready(self.layout.of_role("coordinator"))
        self.mint_admin_token()
        if first:
            self._tell(f"Adding {', '.join(member.id for member in self.layout.of_role('node'))}.")
            asyncio.run(self._join_nodes())
            for member in self.layout.of_role("node"):
                self.start_member(member)
        self._tell("Waiting until all of them are healthy.")
        self.wait_healthy()
        if first:
            self.layout = msgspec.structs.replace(self.layout, complete=True)
            write_durable(self._layout_file, msgspec.json.encode(self.layout))
        self.write_cluster_file()

    def start_member(self, member: Member) -> None:
        """Start one process; it is not ready yet."""
        log = self.directory / "logs" / f"{member.id}.log"
        options = self._options[member.role]
        self.children[member.id] = start_child(
            member.id,
            [member.role, "run", "--data", str(self.data(member)), *options],
            log,
            program=self.programs.get(member.id, OURS),
        )

    def add_node(self, member: Member, token: str) -> None:
        """Have one more node join, and start it; it is not ready yet. Raises FilestoreError."""
        asyncio.run(self._join(member, token))
        self.layout = msgspec.structs.replace(self.layout, members=[*self.layout.members, member])
        self.start_member(member)

    def wait_healthy(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Until every member is ready and the cluster calls every node healthy. Raises Unavailable."""
        self._wait_ready(self.layout.members, timeout_s=timeout_s)
        wait_until(
            self._all_nodes_healthy,
            what="every node healthy",
            timeout_s=timeout_s,
            watched=list(self.children.values()),
        )

    def mint_admin_token(self) -> None:
        """Write a fresh admin token, and the same for curl."""
        token = setup.mint_admin_token(self.data(self.layout.of_role("coordinator")[0]))
        write_secret(self.token_file, f"{token}\n".encode())
        curl = (
            f'cacert = "{self.ca}"',
            f'header = "Authorization: Bearer {token}"',
            "silent",
            "show-error",
            "fail-with-body",
        )
        write_secret(self.curl_file, "\n".join((*curl, "")).encode())

    def client(self) -> AsyncClient:
        """A client with the admin token, for all nodes; before they are there, for the coordinators."""
        members = [member for member in self.layout.members if member.id in self.children]
        nodes = [member.url for member in members if member.role == "node"]
        return AsyncClient(
            nodes or [member.url for member in members],
            root_pem=self.ca.read_text(),
            token=self.token_file.read_text().strip(),
        )

    def write_cluster_file(self) -> None:
        """Tell other programs where everything is, in one rename."""
        described = ClusterFile(
            nodes=[self._describe(member) for member in self.layout.of_role("node")],
            coordinators=[self._describe(member) for member in self.layout.of_role("coordinator")],
            ca=str(self.ca),
            admin_token_file=str(self.token_file),
        )
        write_durable(self.cluster_file, msgspec.json.format(msgspec.json.encode(described)) + b"\n")

    def stop(self) -> None:
        """Remove cluster.json, then end the nodes, then the coordinators.

        The nodes still ask the coordinators while they drain.
        """
        self.cluster_file.unlink(missing_ok=True)
        hurried = self.stopping.is_set()
        self.stopping.clear()
        for role in ("node", "coordinator"):
            members = [self.children[m.id] for m in self.layout.of_role(role) if m.id in self.children]
            stop_children(members, hurry=lambda: hurried and self.stopping.is_set())

    def _describe(self, member: Member) -> ClusterMember:
        return ClusterMember(
            id=member.id,
            url=member.url,
            pid=self.children[member.id].process.pid,
            data=str(self.data(member)),
        )

    @property
    def _layout_file(self) -> Path:
        return self.directory / "layout.json"

    def _load_layout(self) -> Layout | None:
        """The layout of an earlier complete start; what an incomplete one left is removed."""
        if not self._layout_file.exists():
            return None
        layout = decode_foreign(self._layout_file.read_bytes(), Layout)
        if layout.complete:
            return layout
        for member in layout.members:
            shutil.rmtree(self.data(member), ignore_errors=True)
        return None

    def _new_layout(
        self, base_port: int | None, names: Sequence[tuple[str, int]], replicas: int, write_quorum: int
    ) -> Layout:
        count = 2 * len(names)
        ports = free_ports(count) if base_port is None else list(range(base_port, base_port + count))
        members = [
            Member(id=f"{role}-{number}", role=role, api_port=ports[2 * at], peer_port=ports[2 * at + 1])
            for at, (role, number) in enumerate(names)
        ]
        layout = Layout(replicas=replicas, write_quorum=write_quorum, members=members)
        write_durable(self._layout_file, msgspec.json.encode(layout))
        return layout

    def _set_up_coordinators(self) -> None:
        first, *others = self.layout.of_role("coordinator")
        records = [
            CoordinatorRecord(
                coordinator_id=member.id,
                address=LOOPBACK,
                peer_port=member.peer_port,
                api_port=member.api_port,
            )
            for member in (first, *others)
        ]
        setup.init_cluster(
            self.data(first),
            coordinator_id=first.id,
            cluster=CLUSTER_NAME,
            members=records,
            replicas=self.layout.replicas,
            write_quorum=self.layout.write_quorum,
            development=True,
        )
        for member in others:
            setup.init_from_bundle(self.data(member), self.data(first) / "cluster.bundle", member.id)

    async def _join_nodes(self) -> None:
        """Join every node. The tokens go from hand to hand in this process and are in no argument or file."""
        async with self.client() as client:
            for member in self.layout.of_role("node"):
                minted = await client.join_tokens.create(node_id=member.id)
                await self._join(member, minted.token)

    async def _join(self, member: Member, token: str) -> None:
        await join(
            self.data(member),
            token=token,
            node_id=member.id,
            coordinator_url=self.layout.of_role("coordinator")[0].url,
            address=LOOPBACK,
            api_port=member.api_port,
            peer_port=member.peer_port,
        )

    def _wait_ready(self, members: list[Member], *, timeout_s: float = START_TIMEOUT_S) -> None:
        context = client_context(self.ca.read_text())
        waiting = list(members)

        def all_ready() -> bool:
            if self.stopping.is_set():
                raise KeyboardInterrupt
            waiting[:] = [member for member in waiting if not is_ready(member.api_port, context)]
            return not waiting

        watched = [self.children[member.id] for member in members]
        names = ", ".join(member.id for member in members)
        wait_until(all_ready, what=f"{names} ready", timeout_s=timeout_s, watched=watched)

    def _all_nodes_healthy(self) -> bool:
        if self.stopping.is_set():
            raise KeyboardInterrupt
        answer = asyncio.run(self._status())
        healthy = {node["id"] for node in answer["nodes"] if node["state"] == "healthy"}
        return bool(answer["healthy"]) and healthy == {member.id for member in self.layout.of_role("node")}

    async def _status(self) -> dict[str, Any]:
        async with self.client() as client:
            return await client.cluster.status()


def serve(directory: Path, *, base_port: int | None) -> None:
    """Run `filestore dev`: start, print the addresses, wait for SIGINT or SIGTERM, stop.

    Raises Conflict, Unavailable.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked_directory(directory):
        click.echo(f"Starting a cluster of three coordinators and three nodes in {directory}.", err=True)
        cluster = DevelopmentCluster(directory, base_port=base_port, tell=partial(click.echo, err=True))

        def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            cluster.stopping.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                cluster.start()
                print_summary(cluster)
                watch(cluster)
        finally:
            cluster.stop()


@contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Hold the lock of this directory. Raises Conflict when another process does."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Conflict(f"Another `filestore dev` is using {directory}.") from error
        yield
    finally:
        os.close(descriptor)


def watch(cluster: DevelopmentCluster) -> None:
    """Until a signal comes; a child that ends is reported once and not started again."""
    reported: set[str] = set()
    while not cluster.stopping.wait(WATCH_S):
        for name, child in cluster.children.items():
            if name not in reported and not child.runs:
                reported.add(name)
                click.echo(f"{FilestoreError.code}: {child.describe_end()}", err=True)


def print_summary(cluster: DevelopmentCluster) -> None:
    """Print where everything is, and three commands that work as they stand in the present directory."""
    nodes = cluster.layout.of_role("node")
    command, given = _command(), _given(cluster)
    click.echo("Filestore is ready.")
    for member in nodes:
        click.echo(f"  {member.id:<12} {member.url}")
    click.echo(f"  {'CA':<12} {cluster.ca}")
    click.echo(f"  {'admin token':<12} {cluster.token_file}")
    click.echo(f"  {'console':<12} {nodes[0].url}/console/")
    click.echo("Try (Ctrl-C here stops the cluster):")
    click.echo(f"  {command} put{given} {_short(cluster.ca)}")
    click.echo(f"  {command} ls{given}")
    click.echo(f"  {command} status{given}")
    click.echo(f"  curl -K {_short(cluster.curl_file)} {nodes[1 % len(nodes)].url}/api/v1/backups")


def _command() -> str:
    """Return what starts this command in the present directory: its name, if a shell finds that."""
    program = Path(sys.executable).with_name("filestore")
    found = shutil.which("filestore")
    return "filestore" if found and Path(found).resolve() == program.resolve() else _short(program)


def _given(cluster: DevelopmentCluster) -> str:
    """Return the options of a command; none if it finds the cluster in the present directory."""
    if cluster.cluster_file == CLUSTER_FILE.absolute():
        return ""
    url = cluster.layout.of_role("node")[0].url
    return f" --url {url} --ca {_short(cluster.ca)} --token-file {_short(cluster.token_file)}"


def _short(path: Path) -> str:
    """Return a path as it is written in the present directory."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
