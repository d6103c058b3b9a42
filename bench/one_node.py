"""A node with its coordinators for benchmarks: plain and TLS ports, and files of chosen sizes."""

import asyncio
import hashlib
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from deploy.development import DevelopmentCluster
from deploy.processes import LOOPBACK, free_ports, start_child
from node.client_upload import FileSource, upload


class OneNode:
    """Started at once, stopped by `stack`. `stored`: (file_uuid, sha256) of the files of each size."""

    def __init__(self, directory: Path, stack: ExitStack, counts: Mapping[int, int]) -> None:
        """`counts`: how many files of each size to store."""
        self._directory = directory
        self._cluster = DevelopmentCluster(directory / "cluster", node_count=1, replicas=1, write_quorum=1)
        stack.callback(self._cluster.stop)
        self._cluster.start()
        self._member = self._cluster.layout.of_role("node")[0]
        self.plain_port = self._serve_plain()
        self.tls_port = self._member.api_port
        self.token = self._cluster.token_file.read_text().strip()
        self.stored = asyncio.run(self._store_all(counts))

    @property
    def pid(self) -> int:
        """Of the node."""
        return self._cluster.children[self._member.id].process.pid

    def blob_path(self, sha256: str) -> Path:
        """Where the node keeps it."""
        return self._cluster.data(self._member) / "blobs" / sha256[:2] / sha256[2:4] / sha256

    def _serve_plain(self) -> int:
        """Start the node anew with a plain listener beside; its port."""
        child = self._cluster.children[self._member.id]
        child.process.terminate()
        child.process.wait()
        port = free_ports(1)[0]
        data = str(self._cluster.data(self._member))
        arguments = ["node", "run", "--data", data, "--http", f"{LOOPBACK}:{port}"]
        self._cluster.children[self._member.id] = start_child(self._member.id, arguments, child.log)
        self._cluster.wait_healthy()
        return port

    async def _store_all(self, counts: Mapping[int, int]) -> dict[int, list[tuple[str, str]]]:
        return {size: [await self._store(size) for _ in range(count)] for size, count in counts.items()}

    async def _store(self, size_bytes: int) -> tuple[str, str]:
        path, digest = self._directory / "content", hashlib.sha256()
        with path.open("wb") as file:
            for left_bytes in range(size_bytes, 0, -(1 << 20)):
                block = os.urandom(min(left_bytes, 1 << 20))
                digest.update(block)
                file.write(block)
        async with self._cluster.client() as client:
            fields = {"filename": "bench", "project_id": "bench", "size_bytes": size_bytes}
            created = await client.create_project_file(fields)
            with path.open("rb") as file:
                await upload(client, created["file_uuid"], FileSource(file, size_bytes))
        path.unlink()
        return str(created["file_uuid"]), digest.hexdigest()
