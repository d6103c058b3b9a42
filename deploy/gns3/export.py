"""One export of a project as it passes by, and what GNS3 leaves out of it.

GNS3 leaves out a file that it may not read, and says so only on the notification stream of the project. Of an
opened project the compute lists the files. Both are compared with what has come. To listen has a price: GNS3
closes an opened project with `auto_close` when its last listener goes. Such a project is not listened to.

Tested by tests/unit/deploy/gns3/test_losses.py.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

import aiohttp

from ca.errors import FilestoreError, NotFound, Unavailable
from deploy.base.printed import printable_name
from deploy.gns3.archive import END_BYTES, ExportDamaged, Missing, end_with_missing, missing_of
from deploy.gns3.fingerprint import ExportScan, Fingerprint, fingerprint_of
from deploy.gns3.records import LabProject
from deploy.gns3.server import Gns3Server
from runtime.lifetime import end_tasks

QUIET_S: Final = 0.1  # without a warning, after which no further one is expected
LISTENING_S_MAX: Final = 3.0  # until the server listens for the caller; a proxy may hold the answer back
WARNINGS_MAX: Final = 100_000
LISTED_BYTES_MAX: Final = 2 << 30  # of a project whose files are listed: for that the server reads them all
WARNING: Final = "log.warning"
_SKIPPED: Final = re.compile(r"Could not export file (?P<path>.*?): (\[Errno|'utf-8' codec)", re.DOTALL)
# What GNS3 and its emulators write for themselves, and what it never exports on purpose.
_NOISE: Final = re.compile(
    r"[^/]+\.gns3(\.(backup\d*|tmp))?|snapshots/.*|project-files/tmp/.*|(.*/)?\.DS_Store"
    r"|project-files/[^/]+/[^/]+/(qemu|qemu-img|vpcs|ubridge|vnc|iou)\.log"
    r"|project-files/dynamips/(.*/)?(dynamips|c\d{4})_i\d+_log\.txt"
)
_NEVER_EXPORTED: Final = re.compile(
    r"(.*/)?([^/]*(\.log|_log\.txt)|\.DS_Store)|.+/[^/]*\.gns3|project-files/(captures|tmp)/.*"
    r"|(.*/)?snapshots/.*|.*snapshots(/[^/]*)?",  # GNS3 2.2: every folder whose name ends so
    re.DOTALL,
)


class ExportBroken(Unavailable):
    """An export that is not whole, of a server that answers."""


@dataclass(frozen=True, slots=True)
class ExportEnd:
    """The facts about a completed export. `project_ids`: those of the topologies in it.

    `missing` has files that the server cannot open, if its warnings were received (`is_heard`), and files
    that it leaves out on purpose, if it listed the project's files (`is_listed`). `unpacked_bytes`: of its
    files, which is the same in any compression.
    """

    fingerprint: Fingerprint
    size_bytes: int
    unpacked_bytes: int
    compression: str
    missing: Missing
    is_heard: bool
    is_listed: bool
    project_ids: tuple[str, ...]


class Warnings:
    """The warnings of a project's notification stream so far."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.is_listening = False

    async def settle(self) -> None:
        """Wait until no further warning comes. Those of an export were sent before its first byte."""
        seen = -1
        while self.is_listening and seen != len(self.messages):
            seen = len(self.messages)
            await asyncio.sleep(QUIET_S)

    async def listen(self, server: Gns3Server, project_id: str, ready: asyncio.Event) -> None:
        """Collect warnings until it is cancelled or the connection is lost; `ready` is set in any case."""
        try:
            async for notification in server.notifications(project_id):
                self.is_listening = True
                ready.set()
                if notification.action == WARNING and len(self.messages) < WARNINGS_MAX:
                    self.messages.append(str(notification.event.get("message", "")))
        except FilestoreError:
            pass  # the export says what is wrong with the server
        finally:
            self.is_listening = False
            ready.set()


class Export:
    """Use as `exporting`. `parts` gives the bytes, and `finish` is for after the last of them."""

    def __init__(self, server: Gns3Server, project: LabProject, warnings: Warnings) -> None:
        self.scan = ExportScan()
        self._server, self._project, self._warnings = server, project, warnings
        self.parts = self._scanned()

    async def finish(self) -> ExportEnd:
        """Return the facts about the export. Raises ExportBroken if it is incomplete."""
        try:
            archive = await asyncio.to_thread(self.scan.archive)
            ids = await asyncio.to_thread(self.scan.project_ids, archive)
        except ExportDamaged as error:
            told = await self._told()
            raise ExportBroken(
                f"GNS3 server {self._server.name} sent an incomplete export: {error}.{told}"
            ) from error
        await self._warnings.settle()
        missing = set(skipped_files(self._warnings.messages, self._project.path))
        left_out = None
        if archive.unpacked_bytes <= LISTED_BYTES_MAX:
            left_out = await self._left_out({entry.filename for entry in archive.entries})
        return ExportEnd(
            fingerprint_of(archive),
            self.scan.size_bytes,
            archive.unpacked_bytes,
            self._server.compression,
            missing_of(missing | (left_out or set())),
            self._warnings.is_listening,
            left_out is not None,
            tuple(ids),
        )

    async def _scanned(self) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._server.export(self._project.project_id)) as parts:
                async for part in parts:
                    self.scan.feed(part)
                    yield part
        except (NotFound, Unavailable) as error:  # GNS3 2.2 answers 404 if it cannot read a folder
            told = ""
            if isinstance(error.__cause__, TimeoutError):
                told = " It sent nothing for longer than --deadline allows."
            if self.scan.size_bytes or isinstance(error.__cause__, aiohttp.ClientPayloadError):
                told += await self._told()  # else the connection is at fault
            raise Unavailable(error.details + told) from error

    async def _told(self) -> str:
        """Describe the file at fault, as further sentences that begin with a space."""
        await self._warnings.settle()
        told = ""
        if not self.scan.size_bytes:
            told += (
                " It sent no file at all. GNS3 cannot read one of its folders, or cannot write its topology."
            )
        elif name := self.scan.last_name:
            told += f" The last file that arrived was {printable_name(name)}."
        if skipped := skipped_files(self._warnings.messages, self._project.path):
            told += f" It could not read {missing_of(skipped).told}."
        return told

    async def _left_out(self, names: set[str]) -> set[str] | None:
        """The files of an opened project that its compute lists and the export does not have.

        None if it does not list them. Raises Unavailable.
        """
        if self._project.status != "opened" or not self._server.has_compute_credentials:
            return None
        try:
            listed = await self._server.project_files(self._project.project_id)
        except Unavailable:
            raise
        except FilestoreError:
            return None  # its compute does not know the project, or does not take the credentials
        return {path for path in listed if path not in names and not _NOISE.fullmatch(path)}


@asynccontextmanager
async def exporting(server: Gns3Server, project: LabProject) -> AsyncIterator[Export]:
    """Begin an export, and listen to its warnings where that changes nothing. Raises NotFound."""
    project, warnings = await server.project(project.project_id), Warnings()
    export = Export(server, project, warnings)
    if project.status == "opened" and project.auto_close:
        async with aclosing(export.parts):
            yield export
        return
    ready = asyncio.Event()
    listening = asyncio.create_task(warnings.listen(server, project.project_id, ready))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(LISTENING_S_MAX):
                await ready.wait()
        async with aclosing(export.parts):
            yield export
    finally:
        await end_tasks([listening])


def skipped_files(messages: list[str], folder: str) -> list[str]:
    """The files that these warnings name, by their paths in the project's folder. Pure."""
    found = [match["path"] for message in messages if (match := _SKIPPED.match(message))]
    return [path.removeprefix(folder).lstrip("/\\") if folder else PurePosixPath(path).name for path in found]


def known_missing(end: ExportEnd, recorded: Missing) -> Missing:
    """Return the missing files of an export, including those recorded for an earlier equal export.

    A recorded file is kept unless the server would have reported that it is still left out. Pure.
    """
    silent = {name for name in recorded.names if _NEVER_EXPORTED.fullmatch(name)}
    unknown = set[str]() if end.is_listed else silent
    if not end.is_heard:
        unknown |= set(recorded.names) - silent
    return missing_of(unknown.union(end.missing.names)) if unknown else end.missing


async def mark_missing(
    first: bytes, parts: AsyncIterator[bytes], finish: Callable[[], Awaitable[Missing]]
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of an export. `finish` is awaited before the last part, and returns what they lack."""
    held = first[-END_BYTES:]
    yield first[:-END_BYTES]
    async for part in parts:
        passed = held + part
        held = passed[-END_BYTES:]
        yield passed[:-END_BYTES]
    missing = await finish()
    yield end_with_missing(held, missing)
