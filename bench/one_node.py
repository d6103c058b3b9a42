"""A node of one replica with its coordinators for benchmarks: plain and TLS ports, files of chosen sizes."""

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from deploy.dev_cluster import DevelopmentCluster
from deploy.processes import LOOPBACK, free_ports
from node.packs.store import PackStore


def remove_blobs(blobs: Path) -> None:
    """Remove what lies in a node's directory of blobs; the node is not told."""
    for blob in blobs.glob("*/*/*"):
        blob.unlink()


class OneNode:
    """Started at once, stopped by `stack`. `stored`: (file_uuid, sha256) of the files of each size."""

    def __init__(
        self, directory: Path, stack: ExitStack, counts: Mapping[int, int], options: Sequence[str] = ()
    ) -> None:
        """`counts`: how many files of each size to store; `options`: of `filestore node run`."""
        self._directory = directory
        self.plain_port = free_ports(1)[0]
        self._cluster = DevelopmentCluster(
            directory / "cluster",
            node_count=1,
            replicas=1,
            write_quorum=1,
            node_options=("--http", f"{LOOPBACK}:{self.plain_port}", *options),
        )
        stack.callback(self._cluster.stop)
        self._cluster.start()
        self._member = self._cluster.layout.of_role("node")[0]
        self.tls_port = self._member.api_port
        self.token = self._cluster.token_file.read_text().strip()
        self.stored = asyncio.run(self._store_all(counts))

    @property
    def pid(self) -> int:
        """Of the node."""
        return self._cluster.children[self._member.id].process.pid

    @property
    def cluster(self) -> DevelopmentCluster:
        """What it is in."""
        return self._cluster

    @property
    def blobs(self) -> Path:
        """The directory of what it keeps."""
        return self._cluster.data(self._member) / "blobs"

    def blob_path(self, sha256: str) -> Path:
        """Where the node keeps it."""
        return self.blobs / sha256[:2] / sha256[2:4] / sha256

    def put_in_place(self, sha256: str, path: Path) -> None:
        """Have a file at `path` that is the node's own, or a copy of what lies in a pack of it."""
        if self.blob_path(sha256).exists():
            path.symlink_to(self.blob_path(sha256))
            return
        with closing(PackStore(self.blobs.with_name("packs"))) as packs:
            content = packs.read(bytes.fromhex(sha256))
        if content is None:
            raise RuntimeError(f"the node does not have {sha256}")
        path.write_bytes(content)

    async def create(self, size_bytes: int) -> str:
        """A file without content yet; its file_uuid."""
        async with self._cluster.client() as client:
            fields = {"filename": "bench", "project_id": "bench", "size_bytes": size_bytes}
            created = await client.call("POST", "/api/v1/project-files", dict[str, str], body=fields)
            return created["file_uuid"]

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
            stored = await client.files.upload(path, kind="project", resume=False)
        path.unlink()
        return stored.file_uuid, digest.hexdigest()
