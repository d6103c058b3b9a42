"""The files of a version of a project: in an export, in a full backup, or in the project itself.

Of an archive in the store, only its directory and the files that are asked for are read. A project on a
server is exported into a temporary file without a name.

Tested by tests/unit/deploy/gns3/diffs/test_comparison.py.
"""

import asyncio
import io
import os
import struct
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final
from zipfile import ZipInfo

from ca.errors import Conflict
from deploy.base.output import moment
from deploy.gns3.archive import TOPOLOGY, TOPOLOGY_BYTES_MAX, Archive, ExportDamaged, read_archive
from deploy.gns3.export import exporting
from deploy.gns3.fingerprint import TAIL_BYTES_MAX
from deploy.gns3.folders.entries import FolderEntry, open_file, opened_folder
from deploy.gns3.folders.unpacking import FolderArchive
from deploy.gns3.folders.unpacking import read_archive as read_folder
from deploy.gns3.local.projects import TOPOLOGY_ENDING, folder_name, is_passing, scan_project
from deploy.gns3.records import LabProject
from deploy.gns3.server import Gns3Server
from deploy.gns3.stored import StoredBackup, archive_of, is_full, opened_archive, with_content
from filestore_client import AsyncClient
from metadata.archive.zip_methods import EntryDamaged, decode

_LOCAL: Final = struct.Struct("<4s5H3L2H")
_LOCAL_MAGIC: Final = b"PK\x03\x04"

Read = Callable[[Collection[str]], Awaitable[dict[str, bytes]]]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file. Equal marks of one kind (`crc32`, `time`, `target`) mean equal content.

    `access`: mode, owner and attributes as text; "" if the archive has none.
    """

    size: int
    mark: tuple[str, object]
    access: str = ""


@dataclass(frozen=True, slots=True)
class ProjectContents:
    """The files of one version by their paths. `read` returns whole files: its caller looks at their sizes.

    The topology is `project.gns3` in each of them, as in an export.
    """

    title: str
    files: Mapping[str, FileFacts]
    read: Read


@asynccontextmanager
async def stored_contents(
    client: AsyncClient, backup: StoredBackup, identities: Sequence[Any] = ()
) -> AsyncIterator[ProjectContents]:
    """The contents of a backup; `identities`: keys for encrypted ones.

    Raises Conflict if it is damaged, or if no key fits, FilestoreError.
    """
    file = backup.file
    said = f"tag {backup.version}" if backup.version else ""
    title = ", ".join(filter(None, (moment(file.created_at), backup.fingerprint.kind, said, file.message)))
    if is_full(file):
        async with opened_archive(client, file, identities) as opened:
            archive = await opened(read_folder)
            entries = _files(archive.entries)

            async def read_tar(paths: Collection[str]) -> dict[str, bytes]:
                wanted = {path: entries[path] for path in paths}
                found: dict[str, bytes] = await opened(partial(_of_tar, archive=archive, wanted=wanted))
                return found

            yield ProjectContents(title, {path: _facts(each) for path, each in entries.items()}, read_tar)
        return
    try:
        zipped = _zip_entries(await archive_of(client, backup))
    except ExportDamaged as error:
        raise Conflict(f"{file.file_uuid} is not a complete export: {error}.") from error

    async def read_zip(paths: Collection[str]) -> dict[str, bytes]:
        return await with_content(client, file.file_uuid, partial(_of_zip, entries=zipped, paths=paths))

    yield ProjectContents(title, _zip_facts(zipped), read_zip)


@asynccontextmanager
async def exported_contents(server: Gns3Server, project: LabProject) -> AsyncIterator[ProjectContents]:
    """The contents of a project as it would be exported now. Raises ProjectRuns, FilestoreError."""
    with tempfile.TemporaryFile() as kept:
        async with exporting(server, project) as export:
            async for part in export.parts:
                await asyncio.to_thread(kept.write, part)
        size = kept.tell()
        kept.seek(max(0, size - TAIL_BYTES_MAX))
        try:
            entries = _zip_entries(await asyncio.to_thread(read_archive, kept.read(), size))
        except ExportDamaged as error:
            raise Conflict(f"The export is not complete: {error}.") from error

        async def read(paths: Collection[str]) -> dict[str, bytes]:
            return await asyncio.to_thread(_of_zip, kept, entries=entries, paths=paths)

        yield ProjectContents(f"now on {server.name}", _zip_facts(entries), read)


@asynccontextmanager
async def folder_contents(directory: Path, project: LabProject) -> AsyncIterator[ProjectContents]:
    """The contents of a project's folder. Raises Conflict, OSError for what cannot be read."""
    name = folder_name(project, directory)
    with opened_folder(directory / name) as folder:
        entries = _files((await asyncio.to_thread(scan_project, folder, name)).scan.entries)

        def content(path: str) -> bytes:
            with os.fdopen(open_file(folder, entries[path]), "rb") as file:
                return file.read(entries[path].size)

        async def read(paths: Collection[str]) -> dict[str, bytes]:
            return await asyncio.to_thread(lambda: {path: content(path) for path in paths})

        files = {path: _facts(entry) for path, entry in entries.items()}
        yield ProjectContents(f"now in {directory / name}", files, read)


def _files(entries: Iterable[FolderEntry]) -> dict[str, FolderEntry]:
    """Return what is no directory, by the paths that an export has. The topology is the first one."""
    found: dict[str, FolderEntry] = {}
    for entry in entries:
        is_topology = "/" not in entry.path and entry.path.endswith(TOPOLOGY_ENDING)
        path = TOPOLOGY if is_topology and TOPOLOGY not in found else entry.path
        if entry.kind != "directory" and not is_passing(path):
            found.setdefault(path, entry)
    return found


def _facts(entry: FolderEntry) -> FileFacts:
    mark: tuple[str, object] = ("time", (entry.size, entry.mtime_ns))
    if entry.kind != "file":
        mark = ("target", (entry.kind, entry.target))
    access = f"{entry.mode:04o} {entry.uid}:{entry.gid}"
    if entry.xattrs:
        access += f" {zlib.crc32(repr(entry.xattrs).encode('utf-8', 'surrogateescape')):08x}"
    return FileFacts(entry.size, mark, access)


def _zip_entries(archive: Archive) -> dict[str, ZipInfo]:
    named = {each.filename: each for each in archive.entries}
    return {name: each for name, each in named.items() if not (is_passing(name) or name.endswith("/"))}


def _zip_facts(entries: Mapping[str, ZipInfo]) -> dict[str, FileFacts]:
    return {
        path: FileFacts(each.file_size, ("crc32", (each.file_size, each.CRC)))
        for path, each in entries.items()
    }


def _of_tar(content: BinaryIO, archive: FolderArchive, wanted: Mapping[str, FolderEntry]) -> dict[str, bytes]:
    """Read files with their holes. A hard link has the content of its twin."""
    members = {each.entry.path: each for each in archive.members}
    found: dict[str, bytes] = {}
    for path, entry in wanted.items():
        member = members[entry.twin or entry.path]
        whole = bytearray(member.entry.size)
        for start, stop, place in member.spans:
            content.seek(start)
            whole[place : place + stop - start] = content.read(stop - start)
        found[path] = bytes(whole)
    return found


def _of_zip(content: BinaryIO, entries: Mapping[str, ZipInfo], paths: Collection[str]) -> dict[str, bytes]:
    """Read entries of a zip. Raises Conflict for one that is damaged."""
    found: dict[str, bytes] = {}
    for path in paths:
        entry = entries[path]
        content.seek(entry.header_offset)
        header = content.read(_LOCAL.size)
        if len(header) != _LOCAL.size or not header.startswith(_LOCAL_MAGIC):
            raise Conflict("The export is damaged: a file is not at the offset in its directory.")
        *_, name_bytes, extra_bytes = _LOCAL.unpack(header)
        content.seek(name_bytes + extra_bytes, io.SEEK_CUR)
        packed = content.read(min(entry.compress_size, 2 * TOPOLOGY_BYTES_MAX))
        try:
            found[path] = decode(entry.compress_type, io.BytesIO(packed), entry.file_size)
        except EntryDamaged as error:
            raise Conflict(f"The export is damaged: {error}.") from error
        if zlib.crc32(found[path]) != entry.CRC:
            raise Conflict("The export is damaged: the checksum of a file does not match.")
    return found
