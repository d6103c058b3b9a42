"""Whether the store still has what was backed up, as the cluster knows and as reading it shows.

A file that no node holds whole is damaged: its bytes are lost, or repair has yet to put them together. The
cluster notices when it reads a replica, scrubbing included; until then only reading the content tells.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from ca.errors import Conflict
from deploy.base.failures import FAILURES
from deploy.base.output import moment
from deploy.base.printed import printable_name
from deploy.base.terminal import SetProgress
from deploy.gns3.stored import StoredBackup, is_encrypted, manifest_of, stored_backups
from filestore_client import AsyncClient
from filestore_client.base.errors import Gone, NotFound, Unavailable
from filestore_client.base.records import FileRecord, Image

LOOK_UPS_MAX: Final = 8  # requests at once


class Damages:
    """The damage that the cluster knows of files, requested once for each content."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.read: set[str] = set()  # contents that were read to their end and are whole
        self._known: dict[str, bool] = {}
        self._limit = asyncio.Semaphore(LOOK_UPS_MAX)

    async def is_damaged(self, file: FileRecord) -> bool:
        """Whether no node holds the content whole."""
        if file.blob_sha256 not in self._known:
            async with self._limit:
                path = f"/api/v1/files/{file.file_uuid}/replicas"
                answer = await self._client.call("GET", path, dict[str, Any])
            self._known[file.blob_sha256] = not answer["nodes"]
        return self._known[file.blob_sha256]

    async def marked(self, backup: StoredBackup) -> StoredBackup:
        """Return the backup with `is_damaged` as it is."""
        return replace(backup, is_damaged=await self.is_damaged(backup.file))

    async def whole_images(self, images: Mapping[str, Image]) -> dict[str, Image]:
        """Return the images that are neither damaged nor deleted meanwhile, by their MD5."""

        async def is_lost(image: Image) -> bool:
            try:
                return await self.is_damaged(image)
            except (NotFound, Gone):
                return True

        lost = await asyncio.gather(*(is_lost(image) for image in images.values()))
        return {md5: image for (md5, image), is_gone in zip(images.items(), lost, strict=True) if not is_gone}

    async def is_broken(self, backup: StoredBackup) -> bool:
        """Whether it is damaged, or its archive cannot be read. Raises FilestoreError if neither is known.

        An encrypted archive is not read.
        """
        if await self.is_damaged(backup.file):
            return True
        if is_encrypted(backup.file):
            return False
        try:
            await manifest_of(self._client, backup.file)
        except Conflict:
            return True
        return False

    async def require_whole(self, backup: StoredBackup, chain: Sequence[StoredBackup] = ()) -> None:
        """Raise Conflict for a damaged backup; the error names the newest whole one of its chain."""
        if not await self.is_damaged(backup.file):
            return
        told = (
            f"The backup {backup.file.file_uuid} of {printable_name(backup.file.project_name)} is "
            "damaged: no node has a complete copy (see `filestore damaged`)."
        )
        for other in reversed(chain):
            if other.file.file_uuid != backup.file.file_uuid and not await self.is_broken(other):
                made = moment(other.file.created_at)
                raise Conflict(f"{told} The newest complete one is {other.file.file_uuid}, of {made}.")
        raise Conflict(f"{told} There is no complete backup of this project.")

    @asynccontextmanager
    async def requiring_whole(
        self, backup: StoredBackup, chain: Sequence[StoredBackup]
    ) -> AsyncIterator[None]:
        """Check with `require_whole` before the block, and again if reading in it reveals new damage."""
        await self.require_whole(backup, chain)
        try:
            yield
        except (Conflict, Unavailable):
            await Damages(self._client).require_whole(backup, chain)
            raise


async def chain_with(client: AsyncClient, backup: StoredBackup) -> list[StoredBackup]:
    """Return the backups of the same project, server, owner and kind, in the order of the log."""
    file = backup.file
    others = await stored_backups(client, project_id=file.project_id)
    return [
        each
        for each in others
        if each.file.owner_id == file.owner_id
        and each.tag.server.id == backup.tag.server.id
        and each.fingerprint.kind == backup.fingerprint.kind
    ]


async def read_through(client: AsyncClient, file: FileRecord, progress: SetProgress) -> None:
    """Read a file to its end and compare its checksum. Raises Conflict if it is damaged, FilestoreError."""
    found, done_bytes = hashlib.sha256(), 0
    try:
        async for part in client.files.read(file.file_uuid):
            found.update(part)
            done_bytes += len(part)
            progress(done_bytes, file.size_bytes)
    except FAILURES as error:
        if not await Damages(client).is_damaged(file):  # the cluster has noticed it by then
            raise
        named = printable_name(file.filename)
        raise Conflict(f"{named} is damaged: it cannot be read after byte {done_bytes}.") from error
    if found.hexdigest() != file.blob_sha256:
        raise Conflict(f"The content of {file.file_uuid} differs from what was stored.")
