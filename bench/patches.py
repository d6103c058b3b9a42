"""Parts of uploads: PATCH through the holder and through a node that keeps no copy, HEAD, and a whole PUT.

    python -m bench.patches        (PATCHES_FILES=40 for a longer look)

Three coordinators and four nodes, three replicas, write quorum two, all on this machine with the one client.
Each file is 40 MiB, in 8 PATCHes of 5 MiB over kept HTTPS connections; the offset is asked before each. Files
go by turns through their holder and through the node that is not in their placement, so that a slow minute of
the machine touches both. The yardstick is what this machine writes and hashes alone: 5 MiB, three times.
"""

import hashlib
import http.client
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from ca.tls import client_context
from deploy.dev_cluster import DevelopmentCluster, Member
from deploy.processes import LOOPBACK
from metadata.model.placement import Candidate, choose

FILES = int(os.environ.get("PATCHES_FILES", "16"))
PART_BYTES = 5 << 20
PARTS = 8
REPLICAS = 3
TIMEOUT_S = 60.0
ALONE = "the machine alone: 5 MiB hashed, written and synced three times"


class Client:
    """One kept connection to each node. One request at a time."""

    def __init__(self, cluster: DevelopmentCluster) -> None:
        self._context = client_context(cluster.ca.read_text())
        self._credential = f"Bearer {cluster.token_file.read_text().strip()}"
        self._opened: dict[int, http.client.HTTPSConnection] = {}

    def ask(
        self, port: int, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[bytes, float]:
        """Return the body of the answer and the seconds. Raises RuntimeError for an error."""
        connection = self._opened.get(port)
        if connection is None:
            connection = http.client.HTTPSConnection(LOOPBACK, port, context=self._context, timeout=TIMEOUT_S)
            self._opened[port] = connection
        begun_s = time.perf_counter()
        connection.request(method, path, body or None, {"Authorization": self._credential, **headers})
        answer = connection.getresponse()
        content = answer.read()
        took_s = time.perf_counter() - begun_s
        if answer.status >= http.client.MULTIPLE_CHOICES:
            raise RuntimeError(f"{method} {path}: {answer.status} {content.decode()}")
        return content, took_s


def measure(cluster: DevelopmentCluster) -> dict[str, list[float]]:
    """The seconds of every request, by what it was."""
    client, found = Client(cluster), defaultdict[str, list[float]](list)
    nodes = cluster.layout.of_role("node")
    part = os.urandom(PART_BYTES)
    for number in range(-2, FILES):  # the first two open connections between the members
        outside = bool(number % 2)
        told = "node without a copy" if outside else "holder"
        took = found if number >= 0 else defaultdict[str, list[float]](list)
        created = _create(client, nodes[0], f"parts-{number}")
        path, port = urlsplit(created["upload_url"]).path, _entry(nodes, created, outside=outside).api_port
        for at in range(PARTS):
            tus = {"Tus-Resumable": "1.0.0"}
            took[f"HEAD, {told}"].append(client.ask(port, "HEAD", path, b"", tus)[1])
            tus |= {"Upload-Offset": str(at * PART_BYTES), "Content-Type": "application/offset+octet-stream"}
            took[f"PATCH, {told}"].append(client.ask(port, "PATCH", path, part, tus)[1])
        took[ALONE].append(_hash_and_write(cluster.directory, part))
        created = _create(client, nodes[0], f"whole-{number}")
        path, port = urlsplit(created["upload_url"]).path, _entry(nodes, created, outside=outside).api_port
        took[f"PUT of 40 MiB, {told}"].append(client.ask(port, "PUT", path, part * PARTS, {})[1])
    return found


def _create(client: Client, node: Member, filename: str) -> dict[str, str]:
    fields = {"filename": filename, "project_id": "bench", "size_bytes": PART_BYTES * PARTS}
    told = {"Content-Type": "application/json"}
    content, _ = client.ask(node.api_port, "POST", "/api/v1/project-files", json.dumps(fields).encode(), told)
    created: dict[str, str] = json.loads(content)
    return created


def _entry(nodes: Sequence[Member], created: Mapping[str, str], *, outside: bool) -> Member:
    """The holder of the upload, or the node that gets no copy of it."""
    candidates = [Candidate(node.id, "", 100, 1 << 40, 1 << 40) for node in nodes]
    chosen = choose(created["file_uuid"], candidates, REPLICAS)
    if not outside:
        return next(node for node in nodes if created["upload_url"].startswith(node.url))
    return next(node for node in nodes if node.id not in chosen)


def _hash_and_write(directory: Path, part: bytes) -> float:
    """What three replicas need at least, one after the other, in seconds."""
    begun_s = time.perf_counter()
    for number in range(REPLICAS):
        hashlib.sha256(part).digest()
        with (directory / f"yardstick-{number}").open("wb") as file:
            file.write(part)
            os.fdatasync(file.fileno())
    return time.perf_counter() - begun_s


def main() -> None:
    """Print the table and the JSON line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # what was started is ended then
    with tempfile.TemporaryDirectory(prefix="filestore-bench-") as name:
        cluster = DevelopmentCluster(Path(name) / "cluster", node_count=REPLICAS + 1)
        try:
            cluster.start()
            found = measure(cluster)
        finally:
            cluster.stop()
    table = Table(
        "what", "median ms", "p95 ms", "requests", title="bench.patches: parts of 5 MiB, 3 replicas"
    )
    medians_ms = {}
    for what, seconds in sorted(found.items()):
        ordered_ms = sorted(each * 1000 for each in seconds)
        medians_ms[what] = round(statistics.median(ordered_ms), 2)
        p95_ms = ordered_ms[int(len(ordered_ms) * 0.95)]
        table.add_row(what, f"{medians_ms[what]:,.1f}", f"{p95_ms:,.1f}", str(len(ordered_ms)))
    Console(width=110).print(table)
    print(json.dumps({"bench": "patches", "files": FILES, "cores": os.cpu_count()} | medians_ms))


if __name__ == "__main__":
    main()
