"""Whether backups can be restored: looked at where they lie, or tried on a server that is there for it.

Tested by tests/gns3/test_damage.py.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from ca.errors import Conflict, NotFound
from deploy.base.failures import FAILURES, Failure
from deploy.base.printed import printable_name
from deploy.gns3.archive import NOTHING_MISSING, Missing
from deploy.gns3.chains import BackupChain
from deploy.gns3.damage import Damages, read_through
from deploy.gns3.folders.unpacking import read_archive as read_folder
from deploy.gns3.images import Bar
from deploy.gns3.records import is_built_in
from deploy.gns3.restore import check_archive, restore
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import (
    StoredBackup,
    is_encrypted,
    is_full,
    manifest_of,
    recorded_missing,
    with_content,
)
from filestore_client import AsyncClient
from filestore_client.base.records import FileRecord, Image


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check of a backup. `error` None: no problem was found.

    `missing`: files of the project that the backup lacks.
    """

    backup: StoredBackup
    images: int = 0
    nodes: int | None = None
    error: Failure | None = None
    missing: Missing = NOTHING_MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheck:
    """The means for checking backups. `read_data`: read every byte of them and of their images."""

    client: AsyncClient
    damages: Damages
    in_store: Mapping[str, Image]
    read_data: bool = False

    async def check_file(self, file: FileRecord, bar: Bar) -> None:
        """Raise Conflict if the cluster knows of damage, or if reading finds it."""
        if await self.damages.is_damaged(file):
            raise Conflict(f"{printable_name(file.filename)} is damaged: no node has a complete copy.")
        if self.read_data and file.blob_sha256 not in self.damages.read:
            with bar(file.filename) as progress:
                await read_through(self.client, file, progress)
            self.damages.read.add(file.blob_sha256)


async def verify_stored(check: StoredCheck, chain: BackupChain, *, bar: Bar) -> Verdict:
    """Whether the newest archive is whole and as it was made, and every image that it names is stored.

    Of an encrypted archive only the bytes are checked.
    """
    client, backup, in_store = check.client, chain.newest, check.in_store
    try:
        async with check.damages.requiring_whole(backup, chain.backups):
            await check.check_file(backup.file, bar)
            if is_encrypted(backup.file):
                return Verdict(backup)
            manifest = await manifest_of(client, backup.file)
            if is_full(backup.file):
                await with_content(client, backup.file.file_uuid, read_folder)
                missing = await recorded_missing(client, backup.file)
            else:
                missing = (await check_archive(client, backup)).archive.missing
        named = [each for each in manifest.images if each.md5 and not is_built_in(each.filename)]
        absent = [f"{each.filename} ({each.md5})" for each in named if each.md5 not in in_store]
        if absent:
            raise NotFound(f"Some of its images are not in the store: {', '.join(absent)}.")
        for each in named:
            await check.check_file(in_store[each.md5], bar)
    except FAILURES as error:
        return Verdict(backup, error=error)
    return Verdict(backup, images=len(named), missing=missing)


async def verify_restored(
    server: Gns3Server, client: AsyncClient, chain: BackupChain, *, bar: Bar
) -> Verdict:
    """Restore the newest to a server, open it there, and delete the project. Images that were given stay."""
    backup = chain.newest
    try:
        async with Damages(client).requiring_whole(backup, chain.backups):
            name = f"verify-{uuid.uuid4().hex[:8]}"
            restored = await restore(server, client, backup, bar=bar, name=name)
        await server.delete_project(restored.project.project_id)
    except FAILURES as error:
        return Verdict(backup, error=error)
    return Verdict(backup, images=restored.images, nodes=restored.nodes, missing=restored.missing)
