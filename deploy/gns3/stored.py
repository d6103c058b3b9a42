"""The GNS3 projects and images in a store: backups in the order of the log, images by their MD5.

A backup is a project file whose `version_tag` is that of `identity`. Other files are left alone.

Tested by tests/unit/deploy/gns3/test_chain_model.py.
"""

import asyncio
import io
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar, cast

import msgspec

from ca.errors import Conflict, InvalidRequest
from deploy.base.printed import printable_name
from deploy.gns3.archive import (
    NOTHING_MISSING,
    Archive,
    ExportDamaged,
    Missing,
    missing_of_tail,
    read_archive,
)
from deploy.gns3.fingerprint import TAIL_BYTES_MAX, Fingerprint
from deploy.gns3.folders.encryption import ENDING, decrypt
from deploy.gns3.folders.unpacking import ArchiveRejected, content_of
from deploy.gns3.folders.unpacking import read_archive as read_folder
from deploy.gns3.identity import BackupTag
from filestore_client import AsyncClient
from filestore_client.base.records import Image, Manifest, ManifestImage, Project
from filestore_client.transfer.reading import AsyncReader
from metadata.archive.manifest import images_of_topology

LABEL_CHARS_MAX: Final = 200  # of a name that becomes a label or a part of one; 255 are the API's
SMALL_TAIL_BYTES: Final = 1 << 20  # enough for the directory of nearly every project
HEAD_BYTES: Final = 256 << 10  # enough for the topology of most projects
COMMENT_TAIL_BYTES: Final = 66_000  # enough for the comment of a zip
MISSING: Final = "FILESTORE.missing"  # the record of an archive of a folder, with the files that it lacks
ENCRYPTED_TYPE: Final = "application/x-age"  # the content type of an encrypted archive
NO_TAG: Final = "-"  # in the record of a version whose tag was removed
REPLACED_ENDING: Final = " (replaced).gns3.tar"
READ_BYTES: Final = 1 << 20
_UNFIT: Final = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")

T = TypeVar("T")
Opened = Callable[[Callable[[BinaryIO], Any]], Awaitable[Any]]


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

    @property
    def version(self) -> str:
        """Return the tag that its owner gave it, such as `golden`; "" for none."""
        return "" if self.file.tag == NO_TAG else self.file.tag

    @property
    def is_replaced(self) -> bool:
        """Whether it is of a folder that a restore has replaced since."""
        return self.file.filename.removesuffix(ENDING).endswith(REPLACED_ENDING)

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


async def manifest_of(client: AsyncClient, file: Project) -> Manifest:
    """Return the manifest of a backup's archive. Raises Conflict if it is not a project."""
    if is_encrypted(file):
        raise Conflict(f"The backup {file.file_uuid} is encrypted.")
    if is_full(file):
        _, topology = await head_of_full(client, file)
        return Manifest(
            file_uuid=file.file_uuid,
            archive="gns3",
            project_name="",
            format_version="",
            images=named_images(topology),
            truncated=False,
        )
    manifest = await client.files.manifest(file.file_uuid)
    if manifest.archive != "gns3":
        raise Conflict(
            f"{file.file_uuid} ({printable_name(file.filename)}) is not an export of a "
            f"GNS3 project: {manifest.archive}."
        )
    return manifest


def named_images(topology: bytes) -> list[ManifestImage]:
    """Return the images that a topology names."""
    return [ManifestImage(filename=each.filename, md5=each.md5) for each in images_of_topology(topology)]


def is_encrypted(file: Project) -> bool:
    """Whether only the owners of keys can read a backup."""
    return file.content_type == ENCRYPTED_TYPE


def is_full(file: Project) -> bool:
    """Whether a file is a backup of a whole folder."""
    tag = BackupTag.parse(file.version_tag)
    return tag is not None and tag.fingerprint.kind == "full"


@asynccontextmanager
async def opened_archive(
    client: AsyncClient, file: Project, identities: Sequence[Any] = ()
) -> AsyncIterator[Opened]:
    """Yield a function that runs blocking work with the archive of a backup open for reading.

    An encrypted one is decrypted into a temporary file without a name. Raises Conflict if no key fits.
    """
    if not is_encrypted(file):

        async def read(work: Callable[[BinaryIO], Any]) -> Any:
            return await with_content(client, file.file_uuid, work)

        yield read
        return
    if not identities:
        raise Conflict(
            f"The backup {file.file_uuid} is encrypted: give the file of your key with --identity."
        )
    with tempfile.TemporaryFile() as kept:
        await with_content(client, file.file_uuid, partial(decrypt, target=kept, identities=identities))

        async def read_kept(work: Callable[[BinaryIO], Any]) -> Any:
            kept.seek(0)
            return await asyncio.to_thread(work, kept)

        yield read_kept


async def with_content(client: AsyncClient, file_uuid: str, work: Callable[[BinaryIO], T]) -> T:
    """Run blocking work in a thread, with a stored file open for reading. Raises what the work does."""
    loop = asyncio.get_running_loop()
    async with await client.files.open(file_uuid) as reader:
        content = io.BufferedReader(_Content(reader, loop), READ_BYTES)
        return await asyncio.to_thread(work, cast(BinaryIO, content))


async def head_of_full(client: AsyncClient, file: Project) -> tuple[Missing, bytes]:
    """Return the files that a backup of a whole folder lacks, and its topology. Raises Conflict."""
    stop = min(HEAD_BYTES, file.size_bytes)
    head = b"".join([part async for part in client.files.read(file.file_uuid, 0, stop)])
    try:
        return _read_head(io.BytesIO(head))
    except ArchiveRejected:
        if stop == file.size_bytes:
            raise
        return await with_content(client, file.file_uuid, _read_head)  # its topology is large


def _read_head(content: BinaryIO) -> tuple[Missing, bytes]:
    archive = read_folder(content, members_max=2)
    topology = b"".join(content_of(content, archive.members[-1]))
    try:
        return msgspec.json.decode(archive.comments.get(MISSING, "{}"), type=Missing), topology
    except msgspec.MsgspecError as error:
        raise ArchiveRejected(f"Its record {MISSING} cannot be read.") from error


class _Content(io.RawIOBase):
    """A stored file for blocking code in another thread than that of the loop."""

    def __init__(self, reader: AsyncReader, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._reader, self._loop = reader, loop

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._reader.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        wanted = self._reader.read(len(buffer))
        part = asyncio.run_coroutine_threadsafe(wanted, self._loop).result()
        buffer[: len(part)] = part
        return len(part)


async def recorded_missing(client: AsyncClient, file: Project) -> Missing:
    """Return the files of the project that a backup lacks, as its archive says itself.

    An encrypted one does not say it.
    """
    if is_encrypted(file):
        return NOTHING_MISSING
    if is_full(file):
        return (await head_of_full(client, file))[0]
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
