"""A process of clients that read at a steady rate, and tell how long each answer took.

    python -m bench.reader

Orders come as JSON lines on stdin: one begins, an empty line ends it and is answered by one on stdout; the
process ends with its stdin. Each client keeps its connection and asks again at fixed times: one that was
answered late does not ask for more at once, so the rate stays bounded.
"""

import http.client
import sys
import threading
import time

import msgspec
from msgspec import Struct

from ca.tls import client_context

TIMEOUT_S = 60.0


class Reads(Struct, frozen=True, kw_only=True):
    """One client: which request it makes again and again (paths in turn), and how often in a second."""

    kind: str
    port: int
    paths: list[str]
    per_s: float
    bytes_wanted: int
    headers: dict[str, str] = {}


class Order(Struct, frozen=True, kw_only=True):
    """Clients that read until they are stopped."""

    root_pem: str
    credential: str
    clients: list[Reads]


class Outcome(Struct, frozen=True, kw_only=True):
    """How long each answer took, by kind of client; `error` when one of them did not get what it wanted."""

    latencies_us: dict[str, list[int]]
    error: str = ""


class Client:
    """One connection and its thread."""

    def __init__(self, order: Order, reads: Reads, stop: threading.Event) -> None:
        self.reads, self.latencies_us, self.error = reads, list[int](), ""
        self._headers = {"Authorization": order.credential, **reads.headers}
        self._connection = http.client.HTTPSConnection(
            "127.0.0.1", reads.port, timeout=TIMEOUT_S, context=client_context(order.root_pem)
        )
        self._stop = stop
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._connection.connect()
            self._read_steadily()
        except Exception as error:  # noqa: BLE001  # the edge: whoever ordered it is told
            self.error = f"{self.reads.kind}: {type(error).__name__}: {error}"
        finally:
            self._connection.close()

    def _read_steadily(self) -> None:
        number, next_at_s = 0, time.monotonic()
        while not self._stop.wait(max(next_at_s - time.monotonic(), 0)):
            next_at_s = max(next_at_s + 1 / self.reads.per_s, time.monotonic())
            before_s = time.perf_counter()
            self._connection.request(
                "GET", self.reads.paths[number % len(self.reads.paths)], headers=self._headers
            )
            received = len(self._connection.getresponse().read())
            if received != self.reads.bytes_wanted:
                raise ValueError(f"got {received} bytes")
            self.latencies_us.append(int((time.perf_counter() - before_s) * 1e6))
            number += 1


def obey(order: Order, stop: threading.Event) -> Outcome:
    """Have the clients read until `stop` is set."""
    clients = [Client(order, reads, stop) for reads in order.clients]
    latencies_us: dict[str, list[int]] = {}
    for client in clients:
        client.thread.join()
        latencies_us.setdefault(client.reads.kind, []).extend(client.latencies_us)
    return Outcome(
        latencies_us=latencies_us, error=next((client.error for client in clients if client.error), "")
    )


def quantiles_ms(outcome: Outcome, share: float) -> dict[str, float]:
    """What this share of the answers stayed below, by kind of client."""
    found = {}
    for kind, latencies_us in outcome.latencies_us.items():
        found[kind] = sorted(latencies_us)[int(len(latencies_us) * share)] / 1000
    return found


def main() -> None:
    """Obey orders until there are no more."""
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        order, stop = msgspec.json.decode(line, type=Order), threading.Event()
        outcomes: list[Outcome] = []

        def work(order: Order = order, stop: threading.Event = stop, found: list[Outcome] = outcomes) -> None:
            found.append(obey(order, stop))

        working = threading.Thread(target=work)
        working.start()
        sys.stdin.buffer.readline()
        stop.set()
        working.join()
        sys.stdout.buffer.write(msgspec.json.encode(outcomes[0]) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
