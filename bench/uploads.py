"""Uploads to one node beside what disk and processor could do at best, beside nginx and the barest server.

    python -m bench.uploads        (UPLOADS_RUNS=3 UPLOADS_CASES=plain for a shorter look)

One replica, write quorum one: a PUT is answered when its bytes were hashed with sha256, written, synced and
committed by the coordinators, which share the machine, as the sender does. The bound is the slower of two
things done alone: writing as many bytes and fsync, the quicker way, and sha256 of as many bytes on one core.
nginx, with one worker, neither hashes nor syncs. `bench.bare` hashes, writes and syncs as a node does and
does nothing else: what that misses is the price of serving with one event loop and a thread in Python, the
rest is the node's. `bench.threads` writes past the page cache and has neither: what that misses is the price
of having disk, hash and sender at work on the same cores.
Every case is measured in turn, run by run, so that a slow minute of the machine touches all; a ratio is the
median of the ratios of the runs.
"""

import asyncio
import contextlib
import hashlib
import json
import mmap
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.loaders import GIB, Loader, Mover
from bench.nginx import Nginx, why_absent, write_certificate
from bench.one_node import OneNode, remove_blobs
from bench.rows import Figure, Row, as_json, show
from bench.sender import Order
from bench.threads import LOT_BYTES, open_past_cache
from deploy.processes import free_ports

RUNS = int(os.environ.get("UPLOADS_RUNS", "5"))
CASES = os.environ.get("UPLOADS_CASES", "")  # those whose names begin so
FILE_BYTES = int(os.environ.get("UPLOADS_BYTES", str(1 << 30)))
CONNECTIONS = 4  # which share FILE_BYTES


def put_to_node(node: OneNode, sender: Mover, *, tls: bool, connections: int) -> Figure:
    """FILE_BYTES over so many connections; what they left on the disk is removed again."""
    try:
        return put_kept(node, sender, tls=tls, connections=connections)
    finally:
        remove_blobs(node.blobs)


def put_kept(node: OneNode, sender: Mover, *, tls: bool, connections: int) -> Figure:
    """The same, but that it stays there."""
    size_bytes = FILE_BYTES // connections
    file_uuids = [asyncio.run(node.create(size_bytes)) for _ in range(connections)]
    order = Order(
        port=node.tls_port if tls else node.plain_port,
        paths=[f"/api/v1/files/{file_uuid}/content" for file_uuid in file_uuids],
        body_bytes=size_bytes,
        credential=f"Authorization: Bearer {node.token}",
        tls=tls,
    )
    return sender.move(order, FILE_BYTES, node.pid)


def put_to_nginx(nginx: Nginx, sender: Mover, *, tls: bool, connections: int) -> Figure:
    """The same to nginx."""
    names = [f"{at}" for at in range(connections)]
    order = Order(
        port=nginx.tls_port if tls else nginx.plain_port,
        paths=[f"/{name}" for name in names],
        body_bytes=FILE_BYTES // connections,
        tls=tls,
    )
    try:
        return sender.move(order, FILE_BYTES, nginx.pid)
    finally:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (nginx.root / name).unlink()


class Barest:
    """A server of this package, known by its module, that keeps nothing; ended by `stack`.

    Its directory is there already. `ports`: plain, then TLS if it has it.
    """

    def __init__(self, module: str, directory: Path, ports: list[int], *more: Path, stack: ExitStack) -> None:
        self._ports = ports
        arguments = [module, *map(str, [directory, *ports, *more])]
        self._loader = Loader(module, arguments, directory / f"{module}.log")
        stack.callback(self._loader.stop)

    def put(self, sender: Mover, *, tls: bool, connections: int) -> Figure:
        """FILE_BYTES over so many connections."""
        order = Order(
            port=self._ports[tls],
            paths=["/"] * connections,
            body_bytes=FILE_BYTES // connections,
            tls=tls,
        )
        return sender.move(order, FILE_BYTES, self._loader.process.pid)


def _bare(directory: Path, stack: ExitStack) -> Barest:
    """That of `bench.bare`."""
    directory.mkdir()
    write_certificate(directory)
    files = directory / "certificate.pem", directory / "key.pem"
    return Barest("bench.bare", directory, free_ports(2), *files, stack=stack)


def _threads(directory: Path, stack: ExitStack) -> Barest | None:
    """That of `bench.threads`; None where it cannot be, and why is said."""
    try:
        os.close(open_past_cache(directory))
    except OSError as error:
        print(f"bench.uploads: threads skipped: no file can be written past the page cache: {error}")
        return None
    return Barest("bench.threads", directory, free_ports(1), stack=stack)


def written(directory: Path) -> tuple[Figure, Figure]:
    """FILE_BYTES written and synced, alone, once the disk has done what it had to do before: through the page
    cache, and past it.

    The quicker is what the disk can do. A virtual machine's host takes free memory back within seconds; who
    asks for it again, page by page, times the host: 530 to 1,650 MiB/s through the cache were seen where the
    disk always took 1,520 and more.
    """
    os.sync()
    return _through_cache(directory), _past_cache(directory)


def quickest(figures: Iterable[Figure]) -> Figure:
    """That with the highest rate."""
    return max(figures, key=lambda figure: figure.per_s)


def _through_cache(directory: Path) -> Figure:
    path = directory / "yardstick"
    with path.open("wb", buffering=0) as file:
        found = _timed(file.fileno(), memoryview(os.urandom(1 << 20)))
    path.unlink()
    return found


def _past_cache(directory: Path) -> Figure:
    """Nothing, where that cannot be."""
    try:
        descriptor = open_past_cache(directory)
    except OSError:
        return Figure(0)
    with mmap.mmap(-1, LOT_BYTES) as lot:
        lot.write(os.urandom(LOT_BYTES))
        found = _timed(descriptor, lot)
    os.close(descriptor)
    return found


def _timed(descriptor: int, lot: memoryview | mmap.mmap) -> Figure:
    """FILE_BYTES, in whole lots, and fsync."""
    lots = -(-FILE_BYTES // len(lot))
    before_s, started_at = time.process_time(), time.perf_counter()
    for at in range(lots):
        written_bytes = os.pwrite(descriptor, lot, at * len(lot))
        assert written_bytes == len(lot), "the disk is full"
    os.fsync(descriptor)
    elapsed_s = time.perf_counter() - started_at
    spent_s, size_bytes = time.process_time() - before_s, lots * len(lot)
    return Figure(size_bytes / (1 << 20) / elapsed_s, spent_s * GIB / size_bytes)


def hashed() -> Figure:
    """FILE_BYTES hashed on one core, alone."""
    block, digest = os.urandom(1 << 20), hashlib.sha256()
    started_at = time.perf_counter()
    for _ in range(FILE_BYTES >> 20):
        digest.update(block)
    elapsed_s = time.perf_counter() - started_at
    return Figure(FILE_BYTES / (1 << 20) / elapsed_s, elapsed_s * GIB / FILE_BYTES)


@dataclass(frozen=True, slots=True)
class Servers:
    """Who takes bodies in turn; None: cannot be had here."""

    node: OneNode
    bare: Barest
    threads: Barest | None
    nginx: Nginx | None


def rows(directory: Path) -> list[Row]:
    """Every case, measured. Starts and ends all that it needs below `directory`."""
    with ExitStack() as stack:
        sender = Mover("bench.sender", directory)
        stack.callback(sender.stop)
        nginx: Nginx | None = None
        if reason := why_absent(takes_put=True):
            print(f"bench.uploads: nginx skipped: {reason}")
        else:
            root = directory / "root"
            root.mkdir()
            nginx = stack.enter_context(Nginx(directory / "nginx", root, takes_put=True))
        node, bare = OneNode(directory, stack, {}), _bare(directory / "bare", stack)
        return _measure(directory, sender, Servers(node, bare, _threads(directory, stack), nginx))


def _measure(directory: Path, sender: Mover, servers: Servers) -> list[Row]:
    seen: dict[tuple[str, float], list[tuple[Figure, Figure]]] = {}
    for run in range(RUNS + 1):
        disks, sha256 = written(directory), hashed()
        disk = quickest(disks)
        best = min(disk, sha256, key=lambda figure: figure.per_s)
        found = {
            ("disk write and fsync, through the cache / past it", 0.0): disks,
            ("disk write and fsync / sha256, one core", 0.0): (disk, sha256),
        }
        for name, tls, connections in _CHOSEN:
            ours = put_to_node(servers.node, sender, tls=tls, connections=connections)
            barest = servers.bare.put(sender, tls=tls, connections=connections)
            found[f"{name} / min(disk, sha256)", 0.0 if tls else 0.8] = ours, best
            found[f"{name} / bare server", 0.0] = ours, barest
            if servers.threads is not None and not tls:
                threads = servers.threads.put(sender, tls=tls, connections=connections)
                found[f"{name} / threads", 0.0] = ours, threads
                found[f"{name.replace('PUT', 'threads')} / min(disk, sha256)", 0.0] = threads, best
            if servers.nginx is not None:
                theirs = put_to_nginx(servers.nginx, sender, tls=tls, connections=connections)
                found[f"{name} / nginx", 0.65 if tls else 0.0] = ours, theirs
        for case, pair in found.items() if run else ():  # the first does not count
            seen.setdefault(case, []).append(pair)
    return [Row.compared(name, "MiB", target, pairs) for (name, target), pairs in seen.items()]


_CHOSEN = [
    (name, tls, connections)
    for name, tls, connections in (
        ("plain PUT, 1 connection", False, 1),
        ("TLS PUT, 1 connection", True, 1),
        (f"plain PUT, {CONNECTIONS} connections", False, CONNECTIONS),
        (f"TLS PUT, {CONNECTIONS} connections", True, CONNECTIONS),
    )
    if name.startswith(CASES)
]


def main() -> None:
    """Print the table and the JSON line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        found = rows(Path(name))
    show(f"bench.uploads: medians of {RUNS}; CPU s per GiB", found)
    print(json.dumps({**as_json("uploads", RUNS, found), "file_bytes": FILE_BYTES}))


if __name__ == "__main__":
    main()
