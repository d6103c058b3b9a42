"""The GNS3 projects and images in a store: backups in the order of the log, images by their MD5.

A backup is a project file whose `version_tag` is that of `identity`. Other files are left alone.

Tested by tests/unit/deploy/gns3/test_chain_model.py.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ca.errors import Conflict, InvalidRequest
from deploy.base.printed import printable_name
from deploy.gns3.archive import Archive, ExportDamaged, Missing, missing_of_tail, read_archive
from deploy.gns3.fingerprint import TAIL_BYTES_MAX, Fingerprint
from deploy.gns3.identity import BackupTag
from filestore_client import AsyncClient
from filestore_client.base.records import Image, Manifest, Project

LABEL_CHARS_MAX: Final = 200  # of a name that becomes a label or a part of one; 255 are the API's
SMALL_TAIL_BYTES: Final = 1 << 20  # enough for the directory of nearly every project
COMMENT_TAIL_BYTES: Final = 66_000  # enough for the comment of a zip
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")


@dataclass(frozen=True, slots=True)
class StoredBackup:
    """A backup of a project in the store. `is_damaged`: no node is known to hold it whole."""

    file: Project
    tag: BackupTag
    is_damaged: bool = False

    @property
    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of its content."""
        return self.tag.fingerprint

    @property
    def made_at(self) -> datetime:
        """When it was begun, by the clock of the cluster then. It does not order backups: the log does."""
        return datetime.fromisoformat(self.file.created_at)

    def holds(self, fingerprint: Fingerprint) -> bool:
        """Whether it can stand for an export with this fingerprint. A damaged one cannot."""
        return not self.is_damaged and self.fingerprint == fingerprint


def label_of(name: str) -> str:
    """A project's name as it may stand in a record."""
    return _UNFIT.sub("_", name)[:LABEL_CHARS_MAX] or "project"


async def stored_backups(client: AsyncClient, *, project_id: str = "") -> list[StoredBackup]:
    """Return the backups that the caller may see, of one project or all, in the order of the log.

    This includes backups of other owners: any user can store a file with the project id of another user.
    """
    listed = client.projects.list(project_id=project_id, status="available")
    tagged = [(file, BackupTag.parse(file.version_tag)) async for file in listed]
    return [StoredBackup(file, tag) for file, tag in tagged if tag is not None]


def end_of(date: str) -> datetime:
    """The end of a day in the local zone, or the moment itself. Raises InvalidRequest."""
    try:
        found = datetime.fromisoformat(date)
    except ValueError as error:
        raise InvalidRequest(f"{date!r} is not a date such as 2026-11-20 or 2026-11-20T18:00.") from error
    is_day = len(date) <= len("2026-11-20")
    return (found + timedelta(days=1) if is_day else found).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class StoredImages:
    """Available images by their MD5: those of one owner, and those that the caller may see.

    Content is identified by its MD5, whoever has stored it. A name is only reliable if its owner has chosen
    it.
    """

    own: Mapping[str, Image]
    visible: Mapping[str, Image]


async def stored_images(client: AsyncClient, owner_id: str) -> StoredImages:
    """Return the images of an owner, and all; of several with one content the owner's, then the oldest."""
    listed = [image async for image in client.images.list(status="available") if image.md5]
    own = {image.md5: image for image in reversed(listed) if image.owner_id == owner_id}
    return StoredImages(own, {image.md5: image for image in reversed(listed)} | own)


async def manifest_of(client: AsyncClient, backup: StoredBackup) -> Manifest:
    """Return the manifest of a backup's archive. Raises Conflict if it is not a project."""
    manifest = await client.files.manifest(backup.file.file_uuid)
    if manifest.archive != "gns3":
        raise Conflict(
            f"{backup.file.file_uuid} ({printable_name(backup.file.filename)}) is not an export of a "
            f"GNS3 project: {manifest.archive}."
        )
    return manifest


async def recorded_missing(client: AsyncClient, file: Project) -> Missing:
    """Return the files of the project that a backup lacks, as its archive says itself."""
    start = max(0, file.size_bytes - COMMENT_TAIL_BYTES)
    return missing_of_tail(b"".join([part async for part in client.files.read(file.file_uuid, start)]))


async def archive_of(client: AsyncClient, backup: StoredBackup) -> Archive:
    """Return the directory of a stored archive. Raises ExportDamaged."""
    for tail_bytes in (SMALL_TAIL_BYTES, TAIL_BYTES_MAX):
        start = max(0, backup.file.size_bytes - tail_bytes)
        tail = b"".join([part async for part in client.files.read(backup.file.file_uuid, start)])
        try:
            return await asyncio.to_thread(read_archive, tail, backup.file.size_bytes)
        except ExportDamaged:
            if not start or tail_bytes == TAIL_BYTES_MAX:
                raise
    raise AssertionError
