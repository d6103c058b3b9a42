"""What a second worker process of a node is worth: `make bench BENCH=workers`.

Small downloads (4 KiB) and records of files over kept connections, plain HTTP on loopback, from a node of one
worker and one of two, turn by turn; both clusters stand all the time, so that each run has the other as its
yardstick. The client is one more process of the same machine and takes its share of it: with two cores, a
second worker has about half a core to gain.
"""

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench.one_node import OneNode
from deploy.processes import LOOPBACK

CONTENT_BYTES = 4096
CONNECTIONS = 32
RUNS = 5
RUN_S = 4.0
WORKERS = (1, 2)
_LENGTH = b"\r\nContent-Length: "


class Asker(asyncio.Protocol):
    """One connection: a request, its whole answer, the next request."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.answers = 0
        self.failed = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's are not derived from asyncio's
        self._write()

    def data_received(self, data: bytes) -> None:
        """Count a whole answer and ask again."""
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        at = self._received.index(_LENGTH) + len(_LENGTH)
        length = int(self._received[at : self._received.index(b"\r\n", at)])
        if len(self._received) < end + 4 + length:
            return
        if not self._received.startswith(b"HTTP/1.1 200 "):
            self.failed = bytes(self._received[:200]).decode("latin-1")
            return
        self.answers += 1
        self._received.clear()
        self._write()

    def connection_lost(self, exc: Exception | None) -> None:
        """Before we closed it: that is no measurement."""
        self.failed = self.failed or f"the connection ended: {exc}"

    def close(self) -> None:
        """Break off."""
        assert self._transport is not None
        self._transport.abort()

    def _write(self) -> None:
        assert self._transport is not None
        self._transport.write(self._request)


class Standing:
    """A node with so many workers, and a file on it."""

    def __init__(self, directory: Path, stack: ExitStack, workers: int) -> None:
        self.workers = workers
        options = ("--workers", str(workers))
        self._node = OneNode(directory, stack, {CONTENT_BYTES: 1}, options)

    def requests(self) -> Mapping[str, bytes]:
        """What is asked, by the name of the case."""
        file_uuid, _ = self._node.stored[CONTENT_BYTES][0]
        tail = f" HTTP/1.1\r\nHost: {LOOPBACK}\r\nAuthorization: Bearer {self._node.token}\r\n\r\n"
        return {
            "get 4 KiB": f"GET /api/v1/files/{file_uuid}{tail}".encode(),
            "get record": f"GET /api/v1/project-files/{file_uuid}{tail}".encode(),
        }

    async def per_s(self, request: bytes) -> float:
        """Answers per second of one run. Raises RuntimeError when one was no 200."""
        loop = asyncio.get_running_loop()
        askers = []
        for _ in range(CONNECTIONS):
            _, asker = await loop.create_connection(lambda: Asker(request), LOOPBACK, self._node.plain_port)
            askers.append(asker)
        began_s, before = time.perf_counter(), sum(asker.answers for asker in askers)
        await asyncio.sleep(RUN_S)
        answers = sum(asker.answers for asker in askers) - before
        took_s = time.perf_counter() - began_s
        failures = [asker.failed for asker in askers if asker.failed]
        for asker in askers:
            asker.close()
        if failures:
            raise RuntimeError(failures[0])
        return answers / took_s


def main() -> None:
    """Start both, measure turn by turn, print a table and one JSON line."""
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as directory, ExitStack() as stack:
        standing = [Standing(Path(directory) / f"workers-{count}", stack, count) for count in WORKERS]
        report(measure(standing))


def measure(standing: list[Standing]) -> dict[str, dict[int, list[float]]]:
    """Answers per second by case and number of workers, of every run."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in range(RUNS + 1):
        for one in standing:
            for case, request in one.requests().items():
                per_s = uvloop.run(one.per_s(request))
                if run:  # the first warms up
                    found.setdefault(case, {}).setdefault(one.workers, []).append(per_s)
    return found


def report(found: dict[str, dict[int, list[float]]]) -> None:
    """Medians; the ratio is that of pairs of runs beside each other."""
    few, many = WORKERS
    line: dict[str, object] = {"bench": "workers", "connections": CONNECTIONS, "runs": RUNS}
    print(f"{'answers per second':<20} {few:>10} worker {many:>10} workers {'ratio':>8}")
    for case, by_workers in found.items():
        medians = {count: statistics.median(values) for count, values in by_workers.items()}
        pairs = zip(by_workers[few], by_workers[many], strict=True)
        ratio = statistics.median(after / before for before, after in pairs)
        print(f"{case:<20} {medians[few]:>17.0f} {medians[many]:>18.0f} {ratio:>8.2f}")
        line[case] = {"per_s": medians, "ratio": round(ratio, 3)}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
