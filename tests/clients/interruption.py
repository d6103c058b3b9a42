"""Running a stock client through a slow proxy that breaks all its connections once, in the middle."""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from deploy.dev_cluster import Member
from tests.cluster.throttle import ThrottlingProxy

BYTES_PER_S = 24 << 20
CLIENT_TIMEOUT_S = 100.0
T = TypeVar("T")


class DownProxy(ThrottlingProxy):
    """Slow, and counting, in the direction from the server to the client."""

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, throttled: bool
    ) -> None:
        await super()._copy(source, target, throttled=not throttled)


@contextmanager
def uploading(node: Member) -> Iterator[ThrottlingProxy]:
    """A proxy to a node that slows uploads."""
    with ThrottlingProxy(node.api_port, bytes_per_s=BYTES_PER_S) as proxy:
        yield proxy


@contextmanager
def downloading(node: Member) -> Iterator[ThrottlingProxy]:
    """A proxy to a node that slows downloads."""
    with DownProxy(node.api_port, bytes_per_s=BYTES_PER_S) as proxy:
        yield proxy


def cut_after(proxy: ThrottlingProxy, size_bytes: int, act: Callable[[], T]) -> T:
    """What `act` returns, whose connections break when `size_bytes` have passed since now."""
    proxy.cut_marks = [proxy.passed_bytes + size_bytes]
    found: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as failure:
            failures.append(failure)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(CLIENT_TIMEOUT_S + 70)
    assert not thread.is_alive()
    assert not proxy.cut_marks, "the client ended before it could be interrupted"
    assert not failures, failures
    return found[0]


def run_client(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[bytes]":
    """A program, to its end. Secrets are in its environment or files, never among the arguments."""
    return subprocess.run(
        arguments, env=dict(environment), capture_output=True, timeout=CLIENT_TIMEOUT_S, check=False
    )
