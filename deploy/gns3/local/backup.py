"""Whole folders of projects into the store, read on the machine of the GNS3 server.

An unchanged project costs a scan of its folder. A changed one is read while its nodes are stopped, and again
if anything was written meanwhile. If nodes run, it is read from a snapshot of the file system, a given one or
one of btrfs, or from copies by reflink. If there is none, it is skipped, as it is by an export.

Tested by tests/gns3/test_local.py.
"""

import asyncio
import errno
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec

from ca.errors import Conflict, Forbidden, Internal
from deploy.gns3.archive import Missing, missing_of
from deploy.gns3.backup import ATTEMPTS_MAX, BUFFERED_BYTES_MAX, BackupResult, BackupRun, ProjectOutcome
from deploy.gns3.export import ExportEnd
from deploy.gns3.fingerprint import Kind
from deploy.gns3.folders import encryption
from deploy.gns3.folders.copies import copied_by_reflink, is_new_snapshot, make_snapshot, work_in
from deploy.gns3.folders.entries import FolderChanges, FolderEntry, open_file, opened_folder
from deploy.gns3.folders.packing import pack
from deploy.gns3.images import Progress
from deploy.gns3.local.projects import ScannedProject, folder_name, scan_project
from deploy.gns3.local.server_files import CONFIGURATION, is_kept, is_server_folder, server_folders
from deploy.gns3.losses import refuse_foreign
from deploy.gns3.records import LabProject
from deploy.gns3.server import ProjectRuns
from deploy.gns3.stored import ENCRYPTED_TYPE, MISSING, StoredBackup, is_encrypted

ENDING: Final = ".gns3.tar"
CONSISTENCY: Final = "FILESTORE.consistency"  # the record of an archive that says how it was read
QUICK_S: Final = 1.0  # a scan that takes longer is noted as a try before it ends
_READ_ONLY: Final = (errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class _StillProject:
    """A project to read. `check` raises FolderChanges if it was changed meanwhile."""

    found: ScannedProject
    open_entry: Callable[[FolderEntry], int]
    consistency: str
    check: Callable[[], None]


class LocalBackupRun(BackupRun):
    """Backs up the folders of projects in a directory. It is the folder of projects of the server."""

    kind: ClassVar[Kind] = "full"

    def __init__(
        self,
        directory: Path,
        *run: Any,
        ending: str = ENDING,
        snapshot: Path | None = None,
        **options: Any,
    ) -> None:
        """`snapshot`: the same directory in a snapshot that was made for this run."""
        super().__init__(*run, **options)
        self._ending = ending
        self._directory = directory.resolve()
        self._given, self._is_new = snapshot, False
        self._open = ExitStack()  # for the time of a run
        self._work: int | None = None
        self._snapshot: Path | None = None

    async def run(self, projects: Sequence[LabProject]) -> list[BackupResult]:
        """Return one result for each project, in the order in which they are tried."""
        with self._open:
            self._work = self._snapshot = None
            if self._given is not None:
                self._is_new = await asyncio.to_thread(is_new_snapshot, self._given, self._directory)
            return await super().run(projects)

    def refuse(self, project: LabProject) -> None:
        """Raise Conflict for a project that must not be backed up as it is."""
        if not self._wishes.accept_loss:
            refuse_foreign(project)

    def form(self, name: str) -> dict[str, Any]:
        """Return the fields of a record that say what kind of archive it is."""
        is_secret = bool(self._wishes.recipients)
        return {
            "filename": f"{name}{self._ending}{encryption.ENDING if is_secret else ''}",
            "content_type": ENCRYPTED_TYPE if is_secret else "application/x-tar",
            "compression": "none",
            "include_snapshots": True,
        }

    async def store(
        self, project: LabProject, newest: StoredBackup | None, progress: Progress
    ) -> ProjectOutcome:
        """Store a project's folder if it has changed, and again if it changes meanwhile.

        Raises FolderChanges if it does so again, ProjectRuns, Forbidden if a file cannot be read.
        """
        name = folder_name(project, self._directory)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                with ExitStack() as stack:
                    folder = stack.enter_context(opened_folder(self._directory / name))
                    return await self._store_folder(stack, folder, name, project, newest, progress)
            except FolderChanges as error:
                if attempt == ATTEMPTS_MAX:
                    raise FolderChanges(f"{error.details} Does a program still use this project?") from error
            except OSError as error:
                raise _failure_of(error) from error
        raise AssertionError

    async def _store_folder(
        self,
        stack: ExitStack,
        folder: int,
        name: str,
        project: LabProject,
        newest: StoredBackup | None,
        progress: Progress,
    ) -> ProjectOutcome:
        look = partial(scan_project, folder, name)
        if project.project_id == CONFIGURATION:
            look = partial(look, keep=is_kept)
        note = partial(self._journal.tried, project.project_id, at=time.time())
        noting = asyncio.get_running_loop().call_later(QUICK_S, note)
        try:
            found = await asyncio.to_thread(look)
        finally:
            noting.cancel()
        if newest is not None and newest.holds(found.fingerprint) and self._is_encrypted_as_wanted(newest):
            return ProjectOutcome(None, missing_of(found.scan.left_out), topology=found.topology)
        note()
        still = await self._still(stack, folder, look, found, project)
        missing = missing_of(still.found.scan.left_out)
        comments = {CONSISTENCY: still.consistency}
        if missing.count:
            comments[MISSING] = msgspec.json.encode(missing).decode("utf-8", "surrogateescape")
        pieces = pack(still.found.scan, still.open_entry, comments=comments)
        if self._wishes.recipients:
            pieces = encryption.encrypted_pieces(pieces, self._wishes.recipients)
        stack.callback(pieces.close)

        async def finish(size_bytes: int) -> None:
            await asyncio.to_thread(still.check)
            await self._check(project, newest, _end_of(still.found, size_bytes, missing))

        parts = _finished(pieces, finish)
        content: bytes | AsyncGenerator[bytes, None] = parts
        if still.found.scan.size_bytes <= BUFFERED_BYTES_MAX:
            content = b"".join([part async for part in parts])
        tag = self._tag_of(still.found.fingerprint)
        told = partial(_told, progress, still.found.scan.size_bytes)
        stored = await self._upload(project, content, [], newest, told, version_tag=tag)
        return ProjectOutcome(stored, missing, still.consistency, still.found.topology)

    def _is_encrypted_as_wanted(self, newest: StoredBackup) -> bool:
        """Whether it is encrypted if that is asked for. For which keys is not known."""
        return is_encrypted(newest.file) or not self._wishes.recipients

    async def _still(
        self,
        stack: ExitStack,
        folder: int,
        look: Callable[[], ScannedProject],
        found: ScannedProject,
        project: LabProject,
    ) -> _StillProject:
        """A project as it can be read now. Raises ProjectRuns."""
        name = found.scan.name
        is_server = is_server_folder(project.project_id)
        nodes = [] if is_server else await self._server.nodes(project.project_id)
        if not any(node.keeps_project_running for node in nodes):
            check = partial(_require_unchanged, look, found)
            return _StillProject(found, partial(open_file, folder), "stopped", check)
        work = self._work = self._work or self._open.enter_context(work_in(self._directory))
        if found.scan.is_on(self._directory.stat().st_dev) and (place := await self._snapshot_with(work)):
            kept = stack.enter_context(opened_folder(place / name))
            found = await asyncio.to_thread(scan_project, kept, name)
            return _StillProject(found, partial(open_file, kept), "snapshot", _require_nothing)
        if work is not None:
            copies = await asyncio.to_thread(stack.enter_context, copied_by_reflink(found.scan, folder, work))
            if copies is not None:
                copied, open_copy = copies
                return _StillProject(
                    ScannedProject(copied, found.topologies), open_copy, "copies", _require_nothing
                )
        raise ProjectRuns(f"Its nodes run, and {self._directory} has neither snapshots nor reflinks here.")

    async def _snapshot_with(self, work: int | None) -> Path | None:
        """Return the directory in a snapshot; None if there can be none. Raises Conflict for an old one."""
        if self._given is not None:
            if not self._is_new:
                told = f"Its nodes run, and {self._given} has no new snapshot of {self._directory}"
                raise Conflict(f"{told}. Make one for each backup: see docs/gns3-full.md.")
            return self._given
        if self._snapshot is None and work is not None:
            self._snapshot = await asyncio.to_thread(make_snapshot, self._directory, work)
        return self._snapshot


def _require_unchanged(look: Callable[[], ScannedProject], found: ScannedProject) -> None:
    """Raise FolderChanges if an entry is not what it was."""
    now = look().scan.entries
    before = found.scan.entries
    if [(each, each.ctime_ns) for each in now] != [(each, each.ctime_ns) for each in before]:
        raise FolderChanges("Its folder was written to while it was read.")


def _require_nothing() -> None:
    """Do nothing: a copy cannot change."""


def _end_of(found: ScannedProject, size_bytes: int, missing: Missing) -> ExportEnd:
    """Return the facts about an archive, for the checks of an export."""
    return ExportEnd(
        found.fingerprint,
        size_bytes,
        found.scan.size_bytes,
        "none",
        missing,
        is_heard=True,
        is_listed=True,
        project_ids=found.project_ids,
    )


async def _finished(
    pieces: Iterator[bytes], finish: Callable[[int], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    """The pieces of an archive; `finish` is awaited with its size before the last of them."""
    held, size_bytes = b"", 0
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        if held:
            yield held
        held = piece
        size_bytes += len(piece)
    await finish(size_bytes)
    yield held


def _told(progress: Progress, total_bytes: int, done_bytes: int, _: int | None) -> None:
    """Report progress with the size of the folder, as a stream has none before its end."""
    progress(done_bytes, max(total_bytes, done_bytes))


def _failure_of(error: OSError) -> Forbidden | Internal:
    told = f"{error.filename or 'Its folder'}: {error.strerror}."
    if error.errno in _READ_ONLY:
        return Forbidden(f"{told} Run this as root, or with the capability CAP_DAC_READ_SEARCH.")
    return Internal(told)


async def back_up_server(configuration: Path, begin: Callable[[Path], LocalBackupRun]) -> list[BackupResult]:
    """Back up the folders of a server itself. `begin` makes a run for a directory. Raises InvalidRequest."""
    folders = await asyncio.to_thread(lambda: list(server_folders(configuration)))
    results: list[BackupResult] = []
    for each in folders:
        results += await begin(Path(each.path).parent).run([each])
    return results
