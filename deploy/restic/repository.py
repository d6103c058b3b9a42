"""A restic repository as files of a bucket: `restic:REPOSITORY:TYPE:NAME`, a backup each.

A `/` in the name of a repository becomes `+`, which no repository has in its name. Several servers may serve
one bucket: what a list says, and whether there is such a name, comes from the cluster; only who reads is
spared that look where the name was seen before. Names are the SHA-256 of what they name, so that nothing is
ever replaced; but for the configuration, which is written once. A request whose answer was lost comes again:
the same content under the same name is stored already.

Tested by tests/cluster/test_restic_gateway.py.
"""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from filestore_client import AsyncClient
from filestore_client.base.errors import ChecksumMismatch, Conflict, Gone, NotFound
from filestore_client.base.records import Content, FileSummary
from filestore_client.transfer.downloading import read_span

PREFIX: Final = "restic:"  # of the names of all files here; lists leave them out unless they are asked for
CONFIG: Final = "config"
TYPES: Final = ("data", "keys", "locks", "snapshots", "index")
KNOWN_MAX: Final = 200_000  # names that are remembered, of all repositories


class Repositories:
    """The repositories of one bucket.

    `owner_id`: the only user whose files belong to them; "" if the files of all users in the bucket do. In
    the default bucket every user may choose these names, and an admin sees the files of all.
    """

    def __init__(self, client: AsyncClient, bucket_id: str, owner_id: str) -> None:
        self._client = client
        self._bucket_id, self._owner_id = bucket_id, owner_id
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
        """Return the current file with this name. Raises NotFound, FilestoreError."""
        return (await self._all_of(repository, kind, name))[0]

    async def find_known(self, repository: str, kind: str, name: str) -> FileSummary:
        """Return a known file with this name, which another server may have deleted in the meantime."""
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

    async def save(self, repository: str, kind: str, name: str, content: AsyncIterable[bytes]) -> None:
        """Store the content, unless the same is stored under this name.

        Raises Conflict if there is another configuration, ChecksumMismatch for content of another name.

        Of different configurations that are stored at once at most one remains: a request that finds another
        one takes its own back.
        """
        try:
            there = await self.find(repository, kind, name)
        except NotFound:
            pass
        else:
            if await _sha256(content) == there.blob_sha256:
                return
            if kind == CONFIG:
                raise Conflict("There is another configuration already.")
            raise ChecksumMismatch(f"The content of {kind} {name} does not match its name.")
        stored = await self._client.files.upload(
            content,
            kind="backup",
            filename=_filename(repository, kind, name),
            content_type="application/octet-stream",
            bucket_id=self._bucket_id,
            is_encrypted=True,
            blob_sha256=None if kind == CONFIG else name,
        )
        found = await self._all_of(repository, kind, name) if kind == CONFIG else []
        if any(each.blob_sha256 != stored.blob_sha256 for each in found):
            await self._client.files.delete(stored.file_uuid)
            self._known.pop(stored.filename, None)
            raise Conflict("There is another configuration already.")

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

    async def _listed(self, prefix: str) -> AsyncIterator[FileSummary]:
        listed = self._client.files.in_bucket(self._bucket_id, filename=prefix, status="available")
        async for file in listed:
            # until 0.3.0: lists of release 0.1.0 do not say who owns a file.
            if not self._owner_id or file.owner_id in ("", self._owner_id):
                yield file

    def _remember(self, file: FileSummary) -> None:
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[file.filename] = file


def _filename(repository: str, kind: str, name: str) -> str:
    return f"{PREFIX}{repository.replace('/', '+')}:{kind}:{name}"


async def _sha256(content: AsyncIterable[bytes]) -> str:
    digest = hashlib.sha256()
    async for part in content:
        digest.update(part)
    return digest.hexdigest()
