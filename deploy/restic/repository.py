"""A restic repository as files of a bucket: `restic:REPOSITORY:TYPE:NAME`, a backup each.

Several servers may serve one bucket: what a list says, and whether there is such a name, comes from the
cluster; only who reads is spared that look where the name was seen before. Names are the SHA-256 of what they
name, so that nothing is ever replaced; but for the configuration, which is written once.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from filestore_client import AsyncClient
from filestore_client.base.errors import Conflict, Gone, NotFound
from filestore_client.base.records import Content, FileSummary
from filestore_client.transfer.sources import Contents
from filestore_client.transfer.streaming import read_span

CONFIG: Final = "config"
TYPES: Final = ("data", "keys", "locks", "snapshots", "index")
KNOWN_MAX: Final = 200_000  # names that are remembered, of all repositories
REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME: Final = re.compile(r"[0-9a-f]{64}")


class Repositories:
    """Those of one bucket."""

    def __init__(self, client: AsyncClient, bucket_id: str) -> None:
        self._client = client
        self._bucket_id = bucket_id
        self._known: dict[str, FileSummary] = {}

    async def list(self, repository: str, kind: str) -> dict[str, int]:
        """Names and sizes of what a repository has of one type. Raises FilestoreError."""
        prefix = _filename(repository, kind, "")
        found: dict[str, int] = {}
        async for file in self._listed(prefix):
            self._remember(file)
            found[file.filename.removeprefix(prefix)] = file.size_bytes
        return found

    async def find(self, repository: str, kind: str, name: str) -> FileSummary:
        """What is there of this name at the moment. Raises NotFound, FilestoreError."""
        return (await self._all_of(repository, kind, name))[0]

    async def known(self, repository: str, kind: str, name: str) -> FileSummary:
        """The same, but perhaps deleted meanwhile by another server."""
        seen = self._known.get(_filename(repository, kind, name))
        return seen if seen is not None else await self.find(repository, kind, name)

    async def read(self, file: FileSummary, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Bytes `start` to `stop` (excluded). Raises FilestoreError; NotFound when it was deleted."""
        content = Content(size_bytes=file.size_bytes, sha256=file.blob_sha256, filename=file.filename)
        transport = self._client.transport.sibling()
        try:
            async for part in read_span(transport, file.file_uuid, content, start, stop):
                yield part
        except (NotFound, Gone) as error:
            self._known.pop(file.filename, None)
            raise NotFound("It was deleted.") from error

    async def save(self, repository: str, kind: str, name: str, content: Contents) -> None:
        """Store it. Raises Conflict when there is one of this name, ChecksumMismatch for other content.

        Of configurations that are stored at once at most one remains: who finds another takes its own back.
        """
        try:
            await self.find(repository, kind, name)
        except NotFound:
            pass
        else:
            raise Conflict(f"There is a {kind} {name} already.")
        stored = await self._client.files.upload(
            content,
            kind="backup",
            filename=_filename(repository, kind, name),
            content_type="application/octet-stream",
            bucket_id=self._bucket_id,
            is_encrypted=True,
            blob_sha256=None if kind == CONFIG else name,
        )
        if kind == CONFIG and len(await self._all_of(repository, kind, name)) > 1:
            await self._client.files.delete(stored.file_uuid)
            self._known.pop(stored.filename, None)
            raise Conflict("There is a configuration already.")

    async def delete(self, repository: str, kind: str, name: str) -> None:
        """Delete it for good. Raises NotFound, FilestoreError."""
        files = await self._all_of(repository, kind, name)
        self._known.pop(files[0].filename, None)
        for file in files:
            with suppress(NotFound, Gone):  # by another server at the same time
                await self._client.files.delete(file.file_uuid)

    async def _all_of(self, repository: str, kind: str, name: str) -> Sequence[FileSummary]:
        """One file, oldest first where servers have stored it at the same time. Raises NotFound."""
        filename = _filename(repository, kind, name)
        found = [file async for file in self._listed(filename) if file.filename == filename]
        if not found:
            self._known.pop(filename, None)
            raise NotFound(f"There is no {kind} {name}".rstrip() + " in this repository.")
        self._remember(found[0])
        return found

    def _listed(self, prefix: str) -> AsyncIterator[FileSummary]:
        return self._client.files.in_bucket(self._bucket_id, filename=prefix, status="available")

    def _remember(self, file: FileSummary) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[file.filename] = file


def _filename(repository: str, kind: str, name: str) -> str:
    return f"restic:{repository}:{kind}:{name}"
