"""A process that moves bodies as it is ordered: a JSON line on its stdin, answered by one on its stdout.

It says when it is ready, and ends with its stdin. All connections of an order are open before the first
request is sent, so that no handshake is in the time that is told. `bench.loaders.Mover` is the other end.
"""

import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

_Order = TypeVar("_Order", bound=Struct)


class Moved(Struct, frozen=True, kw_only=True):
    """Of all connections together: time from the first request to the last byte of the last answer."""

    elapsed_s: float
    error: str = ""


class Connection(Protocol):
    """One connection of an order, open."""

    error: str

    def run(self) -> None:
        """Send every request and take its answer; `error` is what went wrong then."""


def run_at_once(connections: Sequence[Connection]) -> Moved:
    """Every connection in a thread of its own, until all are done."""
    threads = [threading.Thread(target=connection.run) for connection in connections]
    started_at = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s = time.perf_counter() - started_at
    error = next((connection.error for connection in connections if connection.error), "")
    return Moved(elapsed_s=elapsed_s, error=error)


def obey_orders(order_type: type[_Order], obey: Callable[[_Order], Moved]) -> None:
    """Until there are no more."""
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        moved = obey(msgspec.json.decode(line, type=order_type))
        sys.stdout.buffer.write(msgspec.json.encode(moved) + b"\n")
        sys.stdout.buffer.flush()
