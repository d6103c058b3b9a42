"""Memory of a node: clients that take their time, and connections that do nothing.

Growth of what is resident, for each of them, of a node that has just started: what others gave back would be
used again. Idle connections have asked once and were answered.
"""

import functools
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.loaders import resident_bytes
from bench.one_node import OneNode
from bench.rows import Row
from deploy.processes import LOOPBACK

FILE_BYTES = 256 << 20
SLOW_CLIENTS = 64
SLOW_BYTES_PER_S = 1_000_000
SLOW_SECONDS = 8.0
PIECE_BYTES = 100_000
IDLE_PLAIN = 10_000
IDLE_TLS = 2_000  # shaking hands with more takes longer than the first ones are kept
ROUNDS = 8
DESCRIPTORS_SPARE = 200
TIMEOUT_S = 60.0


def rows(directory: Path) -> list[Row]:
    """One run each: growth hardly differs from run to run."""
    cases: list[Callable[[OneNode], Row]] = [
        *(functools.partial(_slow, is_tls=is_tls) for is_tls in (False, True)),
        *(functools.partial(_idle, is_tls=is_tls) for is_tls in (False, True)),
        functools.partial(_idle, is_tls=True, rounds=ROUNDS),
    ]
    found = []
    for at, case in enumerate(cases):
        with ExitStack() as stack:
            place = directory / str(at)
            place.mkdir()
            found.append(case(OneNode(place, stack, {FILE_BYTES: 1, 4 << 10: 1})))
    return found


def _slow(node: OneNode, *, is_tls: bool) -> Row:
    connect = _connector(node, FILE_BYTES, is_tls=is_tls)
    connect().close()
    before_bytes, peak_bytes = resident_bytes(node.pid), 0
    threads = [threading.Thread(target=_take_slowly, args=(connect,)) for _ in range(SLOW_CLIENTS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        peak_bytes = max(peak_bytes, resident_bytes(node.pid))
        time.sleep(0.1)
    growth_mib = (peak_bytes - before_bytes) / SLOW_CLIENTS / (1 << 20)
    return Row(f"memory, {_name(is_tls)}, 64 clients at 1 MB/s", "MiB each", growth_mib, target=2.0, runs=1)


def _take_slowly(connect: Callable[..., socket.socket]) -> None:
    with connect() as connection:
        started_at = time.monotonic()
        taken_bytes = 0
        while time.monotonic() < started_at + SLOW_SECONDS:
            taken_bytes += len(connection.recv(PIECE_BYTES))
            time.sleep(max(0.0, started_at + taken_bytes / SLOW_BYTES_PER_S - time.monotonic()))


def _idle(node: OneNode, *, is_tls: bool, rounds: int = 1) -> Row:
    """`rounds`: how often as many come and go, of which the last are measured."""
    connect = _connector(node, 4 << 10, is_tls=is_tls)
    connect().close()
    before_bytes, growth_bytes = resident_bytes(node.pid), 0
    with _many_descriptors() as descriptors:
        count = min(IDLE_TLS if is_tls else IDLE_PLAIN, descriptors - DESCRIPTORS_SPARE)
        for _ in range(rounds):
            with ExitStack() as stack:
                for number in range(count):
                    connection = stack.enter_context(connect(f"127.1.{number >> 8}.{number & 255}"))
                    left_bytes = 4 << 10
                    while left_bytes > 0:  # the head as well: a little more comes than is waited for
                        left_bytes -= len(connection.recv(1 << 16))
                growth_bytes = resident_bytes(node.pid) - before_bytes
    name = f"memory, {_name(is_tls)}, {count:,} idle connections" + (f", time {rounds}" if rounds > 1 else "")
    return Row(name, "KiB each", growth_bytes / count / 1024, target=20.0, runs=1)


@contextmanager
def _many_descriptors() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _connector(node: OneNode, size_bytes: int, *, is_tls: bool) -> Callable[..., socket.socket]:
    """Opens a connection, from an address of loopback, that has asked for the file of that size."""
    file_uuid, _ = node.stored[size_bytes][0]
    lines = [f"GET /api/v1/files/{file_uuid} HTTP/1.1", "Host: x", f"Authorization: Bearer {node.token}"]
    request = "\r\n".join([*lines, "", ""]).encode()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def connect(source: str = LOOPBACK) -> socket.socket:
        port = node.tls_port if is_tls else node.plain_port
        connection = socket.create_connection((LOOPBACK, port), TIMEOUT_S, source_address=(source, 0))
        if is_tls:
            connection = context.wrap_socket(connection)
        connection.sendall(request)
        return connection

    return connect


def _name(is_tls: bool) -> str:
    return "tls" if is_tls else "plain"
