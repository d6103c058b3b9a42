"""Whether the metadata API is as fast with a million files as with ten thousand.

    python -m bench.api        (API_FILES=100000 for a shorter look)

Two clusters of three coordinators and one node each, which is asked over HTTPS; both are filled through the
log, as nodes would. They are measured in turn, operation by operation, so that a slow minute of the machine
touches both sizes. Each figure is the median of RUNS of SECONDS; `/healthz` looks at no state.
"""

import asyncio
import itertools
import json
import os
import random
import ssl
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from bench.load import Order
from bench.loaders import CoordinatorGroup, Loaders
from ca.tls import client_context

FEW = 10_000
MANY = int(os.environ.get("API_FILES", "1000000"))
RUNS = 5
SECONDS = 2.0
CLIENTS = 16
PAGE_FILES = 100
SAMPLED_FILES = 500
ORDER_COMMANDS_MAX = 20_000
FILLING_CLIENTS = 256
RATIO_MAX = 1.3
GROUP = "bench-readers"

Request = Callable[[], bytes]
_Ids = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Figure:
    """Answers per second and the slowest of a hundred, medians of RUNS."""

    per_s: float
    p99_ms: float


class Connection:
    """One kept HTTPS connection; one request at a time. Every answer must have the expected status."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer. Raises RuntimeError for anything but 200 and 201."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        body = await self._reader.readexactly(int(fields[b"content-length"]))
        if head.split(b" ", 2)[1] not in (b"200", b"201"):
            raise RuntimeError(f"{head.decode()}{body.decode()}")
        return body

    async def close(self) -> None:
        """End it."""
        self._writer.close()
        await self._writer.wait_closed()


class Api:
    """The node's client port, and requests for it."""

    def __init__(self, group: CoordinatorGroup) -> None:
        node = group.cluster.layout.of_role("node")[0]
        parts = urlsplit(node.url)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._context: ssl.SSLContext = client_context(group.cluster.ca.read_text())
        self.admin = group.cluster.token_file.read_text().strip()

    def request(self, method: str, path: str, token: str, body: object = None) -> bytes:
        """The bytes of one request."""
        content = b"" if body is None else json.dumps(body).encode()
        head = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self._host}",
            f"Authorization: Bearer {token}",
            f"Content-Length: {len(content)}",
        ]
        head += ["Content-Type: application/json"] if content else []
        return "\r\n".join([*head, "", ""]).encode() + content

    @asynccontextmanager
    async def connections(self, count: int) -> AsyncIterator[Sequence[Connection]]:
        """So many connections."""
        made = []
        try:
            for _ in range(count):
                opened = await asyncio.open_connection(self._host, self._port, ssl=self._context)
                made.append(Connection(*opened))
            yield made
        finally:
            for connection in made:
                await connection.close()


async def measure(few: Api, many: Api) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """Every operation RUNS times, on both clusters in turn."""
    async with few.connections(CLIENTS) as of_few, many.connections(CLIENTS) as of_many:
        sides = [
            (of_few, await _requests(few, of_few[0], FEW)),
            (of_many, await _requests(many, of_many[0], MANY)),
        ]
        seen: list[dict[str, list[Figure]]] = [{name: [] for name in requests} for _, requests in sides]
        for _ in range(RUNS):
            for name in seen[0]:
                for (connections, requests), figures in zip(sides, seen, strict=True):
                    figures[name].append(await _run(connections, requests[name]))
    return _medians(seen[0]), _medians(seen[1])


def _medians(seen: Mapping[str, list[Figure]]) -> dict[str, Figure]:
    return {
        name: Figure(statistics.median(f.per_s for f in runs), statistics.median(f.p99_ms for f in runs))
        for name, runs in seen.items()
    }


async def _run(connections: Sequence[Connection], make: Request) -> Figure:
    latencies_s: list[float] = []
    stop_at = time.perf_counter() + SECONDS

    async def client(connection: Connection) -> None:
        while (started_at := time.perf_counter()) < stop_at:
            await connection.ask(make())
            latencies_s.append(time.perf_counter() - started_at)

    started_at = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(client(connection))
    elapsed_s = time.perf_counter() - started_at
    latencies_s.sort()
    return Figure(len(latencies_s) / elapsed_s, latencies_s[len(latencies_s) * 99 // 100] * 1000)


async def _requests(api: Api, connection: Connection, files_made: int) -> Mapping[str, Request]:
    """What is measured, by name. The files asked for lie anywhere among all; the reader is granted a few."""
    dice = random.Random(1)
    cursors = await _cursors(api, connection, files_made)
    file_uuids = [await _file_at(api, connection, cursor) for cursor in cursors]
    reader = await _reader(api, connection, file_uuids[:PAGE_FILES])
    numbers = itertools.count()
    files, path = "/api/v1/project-files", "/api/v1/project-files/{}"

    def create() -> bytes:
        body = {"filename": "bench.gns3project", "project_id": f"bench-{dice.randrange(100)}"}
        return api.request("POST", files, api.admin, body)

    def patch() -> bytes:
        body = {"version_tag": f"v{next(numbers)}"}
        return api.request("PATCH", path.format(dice.choice(file_uuids)), api.admin, body)

    return {
        "healthz (yardstick)": lambda: api.request("GET", "/healthz", api.admin),
        "GET record": lambda: api.request("GET", path.format(dice.choice(file_uuids)), api.admin),
        "GET page of 100": lambda: api.request(
            "GET", f"{files}?limit={PAGE_FILES}&cursor={dice.choice(cursors)}", api.admin
        ),
        "permission by group": lambda: api.request(
            "GET", path.format(dice.choice(file_uuids[:PAGE_FILES])), reader
        ),
        "POST create": create,
        "PATCH": patch,
    }


async def _cursors(api: Api, connection: Connection, files_made: int) -> list[int]:
    """Places spread over the whole list, the last a page before its end. A cursor is a log index."""
    dice = random.Random(2)
    first = await _next_cursor(api, connection, 1)
    low, high = first, 4 * files_made
    while low < high:  # the largest cursor that still has a page of files behind it
        middle = (low + high + 1) // 2
        low, high = (middle, high) if await _next_cursor(api, connection, middle) else (low, middle - 1)
    return [dice.randint(first, low) for _ in range(SAMPLED_FILES)]


async def _next_cursor(api: Api, connection: Connection, cursor: int) -> int:
    target = f"/api/v1/project-files?limit={PAGE_FILES}&cursor={cursor}"
    page = _Ids.decode(await connection.ask(api.request("GET", target, api.admin)))
    return int(msgspec.json.decode(page["next_cursor"], type=str)) if "next_cursor" in page else 0


async def _file_at(api: Api, connection: Connection, cursor: int) -> str:
    target = f"/api/v1/project-files?limit=1&cursor={cursor}"
    page = json.loads(await connection.ask(api.request("GET", target, api.admin)))
    return str(page["project_files"][0]["file_uuid"])


async def _reader(api: Api, connection: Connection, file_uuids: Sequence[str]) -> str:
    """A token of a user who may read these files because of a group only."""
    mint = api.request("POST", "/api/v1/auth/users/bench-reader/token", api.admin, {"groups": [GROUP]})
    token = str(json.loads(await connection.ask(mint))["token"])
    grant = {"permission": "read", "principal_type": "group", "principal_id": GROUP}
    for file_uuid in file_uuids:
        target = f"/api/v1/files/{file_uuid}/permissions"
        await connection.ask(api.request("POST", target, api.admin, grant))
    return token


def fill(loaders: Loaders, files: int) -> None:
    """Make so many files."""
    for first in range(0, files, ORDER_COMMANDS_MAX):
        count = min(ORDER_COMMANDS_MAX, files - first)
        loaders.run(Order(what="create", clients=FILLING_CLIENTS, count=count))


def show(few: Mapping[str, Figure], many: Mapping[str, Figure]) -> None:
    """The table for people."""
    table = Table("operation", f"{FEW:,} files", "p99 ms", f"{MANY:,} files", "p99 ms", "times slower")
    table.title = f"bench.api: per second, {CLIENTS} clients, medians of {RUNS} runs of {SECONDS:g} s each"
    for name, before in few.items():
        after = many[name]
        table.add_row(
            name,
            f"{before.per_s:,.0f}",
            f"{before.p99_ms:.1f}",
            f"{after.per_s:,.0f}",
            f"{after.p99_ms:.1f}",
            f"{before.per_s / after.per_s:.2f} (target {RATIO_MAX:g})",
        )
    Console(width=110).print(table)


def main() -> None:
    """Print the table and the JSON line."""
    with (
        tempfile.TemporaryDirectory(prefix="filestore-bench-") as directory,
        CoordinatorGroup(Path(directory) / "few", node_count=1) as group_of_few,
        CoordinatorGroup(Path(directory) / "many", node_count=1) as group_of_many,
        group_of_few.loaders(1) as loaders_of_few,
        group_of_many.loaders(1) as loaders_of_many,
    ):
        fill(loaders_of_few, FEW)
        fill(loaders_of_many, MANY)
        few, many = uvloop.run(measure(Api(group_of_few), Api(group_of_many)))
    show(few, many)
    found = {str(FEW): few, str(MANY): many}
    print(
        json.dumps(
            {
                "bench": "api",
                "clients": CLIENTS,
                "runs": RUNS,
                "files": {size: {name: asdict(f) for name, f in by.items()} for size, by in found.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
