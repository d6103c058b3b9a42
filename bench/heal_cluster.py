"""The cluster of `bench.heal`: a node that dies, what the log says of its replicas, and the plain copy."""

import asyncio
import http.client
import io
import json
import os
import socket
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bench.loaders import cpu_s
from bench.rows import Figure
from ca.tls import client_context, peer_client_context
from coordinator.storage.config import CoordinatorFiles
from deploy.dev_cluster import CLUSTER_NAME, DevelopmentCluster, Member
from deploy.processes import wait_until
from node.base.config import NodeFiles
from tests.blobs_on_disk import age_all_on

NODES, REPLICAS = 4, 3
DOWN_AFTER_S = 3
HEALED_S_MAX = 300.0
REQUEST_TIMEOUT_S = 60.0
AGE_S = 3600.0  # what came just now is not dropped
POLL_S = 0.02
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Healed:
    """Seconds from the death of a node, and the rate at which its replicas were made anew."""

    noticed_s: float
    healed_s: float
    rate: Figure


class HealingCluster:
    """Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._cluster = DevelopmentCluster(
            directory / "cluster",
            node_count=NODES,
            replicas=REPLICAS,
            coordinator_options=("--down-after", str(DOWN_AFTER_S)),
        )
        self._killed_at_s = self._killed_cpu_s = 0.0
        self._killed_at_ms = 0
        self._noticed_s = 0.0

    def __enter__(self) -> Self:
        try:
            self._cluster.start()
        except BaseException:
            self._cluster.stop()
            raise
        self._context = client_context(self.root_pem)
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.stop()

    @property
    def root_pem(self) -> str:
        """What clients trust."""
        return self._cluster.ca.read_text()

    @property
    def credential(self) -> str:
        """An admin's, as a header says it."""
        return f"Bearer {self._cluster.token_file.read_text().strip()}"

    @property
    def nodes(self) -> list[Member]:
        """All four."""
        return self._cluster.layout.of_role("node")

    def path(self, file_uuid: str) -> str:
        """Where a file is read."""
        return f"/api/v1/files/{file_uuid}"

    def store(self, size_bytes: int) -> str:
        """Upload random content; its file_uuid."""
        with (self.directory / "content").open("w+b") as file:
            for start in range(0, size_bytes, 1 << 20):
                file.write(os.urandom(min(1 << 20, size_bytes - start)))
            file.seek(0)
            return asyncio.run(self._upload(file))

    async def _upload(self, file: io.BufferedRandom) -> str:
        async with self._cluster.client() as client:
            return (await client.files.upload(file, kind="project", filename="bench")).file_uuid

    def delete(self, file_uuid: str) -> None:
        """Its bytes stay: nobody waits for them."""
        self._request("DELETE", self.path(file_uuid))

    def sha256(self, file_uuid: str) -> str:
        """Of its content, once the coordinator that is looked at knows it: it may be behind the leader."""
        sql = "SELECT blob_sha256 FROM files WHERE file_uuid = ? AND blob_sha256 IS NOT NULL"
        wait_until(lambda: bool(self._logged(sql, file_uuid)), what="a stored file", timeout_s=HEALED_S_MAX)
        return str(self._logged(sql, file_uuid)[0][0])

    def holder(self, sha256: str) -> Member:
        """A node that the log names for a blob."""
        sql = "SELECT node_id FROM blob_replicas WHERE sha256 = ? AND doomed_at IS NULL"
        named = {node_id for (node_id,) in self._logged(sql, sha256)}
        return next(node for node in self.nodes if node.id in named)

    def has_all(self, node: Member, blobs: Sequence[str]) -> bool:
        """Whether these lie on a node's disk."""
        return all(self._blob(node, sha256).exists() for sha256 in blobs)

    def plain_copy(self, source: Member, blobs: Sequence[str], target: Member) -> Figure:
        """What a plain client does with those of the blobs that the node has: over TLS into a synced file."""
        chosen = [sha256 for sha256 in blobs if self.has_all(source, [sha256])]
        size_bytes = sum(self._blob(source, sha256).stat().st_size for sha256 in chosen)
        path = self._cluster.data(target) / "yardstick"  # on the disk that the replicas come to
        before_s, started_at_s = self._cpu_s(), time.perf_counter()
        for sha256 in chosen:
            with closing(self._peer_connection(source, target)) as connection, path.open("wb", 0) as file:
                connection.request("GET", f"/blobs/{sha256}")
                _copy(connection.getresponse(), file)
        elapsed_s = time.perf_counter() - started_at_s
        path.unlink()
        return Figure(size_bytes / elapsed_s / 1e6, (self._cpu_s() - before_s) * GIB / size_bytes)

    def kill_and_heal(self, victim: Member, blobs: Sequence[str]) -> Healed:
        """SIGKILL, and wait until every blob has three replicas that count."""
        self.kill(victim)
        self.until_noticed(victim)
        return self.until_healed(victim, blobs)

    def kill(self, victim: Member) -> None:
        """SIGKILL for a node."""
        child = self._cluster.children[victim.id]
        child.process.kill()
        child.process.wait()
        self._killed_at_s, self._killed_at_ms = time.monotonic(), int(time.time() * 1000)
        self._killed_cpu_s = self._cpu_s()

    def until_noticed(self, victim: Member) -> None:
        """Until the log says that the node is down."""
        sql = "SELECT state FROM nodes WHERE node_id = ?"
        self._until(lambda: self._logged(sql, victim.id) == [("down",)], f"{victim.id} down")
        self._noticed_s = time.monotonic() - self._killed_at_s

    def until_healed(self, victim: Member, blobs: Sequence[str]) -> Healed:
        """Until nothing lacks a replica; the bytes that were copied are those that the victim held."""
        size_bytes = sum(
            self._blob(victim, sha256).stat().st_size for sha256 in blobs if self.has_all(victim, [sha256])
        )
        self._until(self._is_whole, "three replicas of everything")
        healed_s = time.monotonic() - self._killed_at_s
        sql = "SELECT MIN(started_at_ms) FROM job_runs WHERE job_name = 'repair' AND started_at_ms > ?"
        took_s = time.time() - self._logged(sql, self._killed_at_ms)[0][0] / 1000
        rate = Figure(size_bytes / took_s / 1e6, (self._cpu_s() - self._killed_cpu_s) * GIB / size_bytes)
        return Healed(self._noticed_s, healed_s, rate)

    def rest(self, for_s: float) -> None:
        """Let it be quiet for so long."""
        time.sleep(for_s)

    def take_back(self, victim: Member) -> None:
        """Start the node again, and have what is too much then released and dropped."""
        self._cluster.start_member(victim)
        self._cluster.wait_healthy()
        surplus = (
            "SELECT 1 FROM blob_replicas GROUP BY sha256 HAVING COUNT(*) <> (SELECT replicas FROM cluster)"
        )

        def is_even() -> bool:
            if not self._logged(f"SELECT 1 FROM nodes WHERE state <> 'healthy' UNION ALL {surplus}"):
                return True
            self._let_time_pass()
            self._request("POST", "/api/v1/jobs/trim")
            time.sleep(0.5)
            return False

        self._until(is_even, "three replicas of everything, and no more")

    def _is_whole(self) -> bool:
        ((short, recounting),) = self._logged(
            "SELECT (SELECT COUNT(*) FROM blobs WHERE missing > 0), (SELECT COUNT(*) FROM recounts)"
        )
        return not short and not recounting

    def _let_time_pass(self) -> None:
        at_s = time.time() - AGE_S
        for node in self.nodes:  # a change of its time is an arrival: what is that old already is left alone
            age_all_on(self._cluster.data(node), at_s, newer_than_s=at_s + AGE_S / 2)

    def _until(self, condition: Any, what: str) -> None:
        wait_until(condition, what=what, timeout_s=HEALED_S_MAX)

    def _blob(self, node: Member, sha256: str) -> Path:
        return self._cluster.data(node) / "blobs" / sha256[:2] / sha256[2:4] / sha256

    def _cpu_s(self) -> float:
        children = [self._cluster.children[node.id] for node in self.nodes]
        return sum(cpu_s(child.process.pid) for child in children if child.runs)

    def _logged(self, sql: str, *values: str | int) -> list[Any]:
        """What the state of the first coordinator says by now."""
        state = CoordinatorFiles(self._cluster.data(self._cluster.layout.of_role("coordinator")[0])).state
        with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True)) as db:
            return db.execute(sql, values).fetchall()

    def _request(self, method: str, path: str) -> Any:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.nodes[0].api_port, timeout=REQUEST_TIMEOUT_S, context=self._context
        )
        with closing(connection):
            connection.request(method, path, headers={"Authorization": self.credential})
            return json.loads(connection.getresponse().read())

    def _peer_connection(self, source: Member, caller: Member) -> http.client.HTTPConnection:
        credential = NodeFiles(self._cluster.data(caller)).credential()
        context = peer_client_context(credential.path, credential.root_pem)
        connection = http.client.HTTPConnection("127.0.0.1", source.peer_port)
        plain = socket.create_connection(("127.0.0.1", source.peer_port), REQUEST_TIMEOUT_S)
        name = f"{source.id}.node.{CLUSTER_NAME}.internal"
        connection.sock = context.wrap_socket(plain, server_hostname=name)
        return connection


def _copy(response: http.client.HTTPResponse, file: io.FileIO) -> None:
    if response.status != 200:
        raise RuntimeError(f"the source answered {response.status}")
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    while count := response.readinto(buffer):
        file.write(view[:count])
    os.fsync(file.fileno())
