"""The processes of a node from outside: which there are, and which of them serves a connection."""

import http.client
import os
import re
import select
import socket
from pathlib import Path

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.workers.siblings import owner_of
from tests.cluster.harness import Cluster

TRIES_MAX = 300  # the kernel deals connections out by chance


def pids_of(cluster: Cluster, node: Member) -> dict[int, int]:
    """The processes that run now, by the worker's number."""
    first = cluster.pid(node)
    found = {0: first}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            arguments = (entry / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == first and "node.worker_main" in arguments:
            found[int(arguments[arguments.index("--worker") + 1])] = int(entry.name)
    return found


def server_of(cluster: Cluster, node: Member, connection: socket.socket) -> int:
    """Which worker holds the other end of this connection."""
    local, remote = connection.getsockname()[1], connection.getpeername()[1]
    inode = ""

    def accepted() -> bool:
        nonlocal inode
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            ports = [int(fields[at].split(":")[1], 16) for at in (1, 2)]
            if ports == [remote, local] and fields[9] != "0":
                inode = fields[9]
        return bool(inode)

    wait_until(accepted, what="the connection accepted", timeout_s=10)
    for number, pid in pids_of(cluster, node).items():
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if descriptor.readlink() == Path(f"socket:[{inode}]"):
                    return number
            except FileNotFoundError:
                continue
    raise AssertionError("nobody holds the connection")


def connect(cluster: Cluster, node: Member, worker: int | None = None) -> http.client.HTTPSConnection:
    """A kept connection to one worker, any if none is named."""
    for _ in range(TRIES_MAX):
        connection = http.client.HTTPSConnection(
            "127.0.0.1", node.api_port, timeout=60, context=cluster.context
        )
        connection.connect()
        if worker is None or server_of(cluster, node, connection.sock) == worker:
            return connection
        connection.close()
    raise AssertionError(f"no connection reached worker {worker}")


def created_for(cluster: Cluster, node: Member, worker: int, workers: int, size_bytes: int) -> str:
    """A new file whose upload this worker of this node owns."""
    while True:
        created = cluster.create(size_bytes=size_bytes, node=node)
        file_uuid = str(created["file_uuid"])
        if created["upload_url"].startswith(node.url) and owner_of(file_uuid, workers) == worker:
            return file_uuid


def counted(cluster: Cluster, node: Member, pattern: str) -> float:
    """The sum of the samples at /metrics whose line matches."""
    answer = cluster.get("/metrics", node=node, token=None)
    assert answer.status == 200, answer.body
    lines = answer.body.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(pattern, line))


class Ending:
    """Processes that are about to end; made before, so that no other can have their numbers."""

    def __init__(self, pids: list[int]) -> None:
        self._descriptors = [os.pidfd_open(pid) for pid in pids]

    def wait(self, timeout_s: float) -> None:
        """Until the last has ended."""
        for descriptor in self._descriptors:
            ended, _, _ = select.select([descriptor], [], [], timeout_s)
            os.close(descriptor)
            assert ended, "a process still runs"
