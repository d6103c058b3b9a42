"""Projects of a GNS3 server into the store, each as it is exported, without a disk in between.

Whether a project has changed is known at the end of its export only. An export of up to BUFFERED_BYTES_MAX is
kept in memory until then. A larger one is stored as it comes if its topology has changed, if a file in its
beginning was changed since the newest backup, or if the last run found the project changed. Else it is only
read, and exported again when a later file was changed or its end shows a change. A new backup gets its
fingerprint before its last byte: it is never seen without one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from ca.errors import Unavailable as ServerUnavailable
from deploy.base.failures import FAILURES, Failure
from deploy.gns3.archive import END_BYTES, NOTHING_MISSING, ExportDamaged, Missing, end_with_missing
from deploy.gns3.chains import chains_of, label_version, to_continue
from deploy.gns3.damage import LOOK_UPS_MAX, Damages
from deploy.gns3.export import Export, ExportBroken, ExportEnd, exporting, known_missing, mark_missing
from deploy.gns3.fingerprint import HEAD_BYTES_MAX, ChangeScan, Fingerprint, Kind, topology_crc32_of_head
from deploy.gns3.identity import BackupTag
from deploy.gns3.images import Bar, NamedImages, Progress
from deploy.gns3.journal import Journal
from deploy.gns3.losses import refuse_foreign, refuse_hidden, refuse_loss
from deploy.gns3.records import LabProject
from deploy.gns3.server import Gns3Server, ProjectRuns
from deploy.gns3.stored import StoredBackup, archive_of, label_of, recorded_missing, stored_backups
from deploy.gns3.watch import ABSENT, LASTING, Patience
from filestore_client import AsyncClient
from filestore_client.base.errors import Gone, NotFound
from filestore_client.base.records import Project
from filestore_client.transfer.creating import SMALL_BYTES_MAX

Status = Literal["stored", "unchanged", "running", "failed", "gone"]

ATTEMPTS_MAX: Final = 2  # of an export that breaks off
BUFFERED_BYTES_MAX: Final = 32 << 20  # of an export that is kept in memory until its end is known
STOPPED_POLL_S: Final = 5.0
_ENDING: Final = (*ABSENT, *LASTING)  # what probably meets the next project, too


class _Unchanged(Exception):
    """The export to store equals the newest backup."""


@dataclass(frozen=True, slots=True)
class ProjectOutcome:
    """The result of one project. `stored` is None if the newest backup is the same, and nothing was stored.

    `consistency`: how a full backup was read, see `BackupResult`. `topology`: the topology in the
    backup, if it is at hand.
    """

    stored: Project | None
    missing: Missing
    consistency: str = ""
    topology: bytes = b""


@dataclass(frozen=True, slots=True)
class BackupResult:
    """The result of the backup of one project.

    `errors`: what prevented it, or images of it, from being stored. `missing`: files that its backup lacks.
    `consistency`: whether the nodes of a project with a full backup were `stopped`, or it was read from a
    `snapshot`, or from `copies` of its files.
    """

    project: LabProject
    status: Status
    file_uuid: str = ""
    size_bytes: int = 0
    images: int = 0
    errors: Sequence[Failure] = field(default_factory=tuple)
    missing: Missing = NOTHING_MISSING
    consistency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupWishes:
    """The options of a run. `wait_s`: how long to wait for running projects.

    `accept_loss`: also store projects that seem to have lost most of their content. `protect_days`: for
    how long the backups cannot be deleted; None as their bucket has it. `message`, `tag`: of the versions.
    `recipients`: the keys that full backups are encrypted for.
    """

    bucket_id: str = ""
    with_images: bool = False
    wait_s: float = 0.0
    accept_loss: bool = False
    protect_days: int | None = None
    message: str = ""
    tag: str = ""
    recipients: Sequence[Any] = ()


class BackupRun:
    """Backs up projects of one server, one after another; calls `tell` with each result.

    It stores exports. `LocalBackupRun` stores whole folders: it has another `kind`, and overrides the methods
    with public names below `run`.
    """

    kind: ClassVar[Kind] = "export"

    def __init__(
        self,
        server: Gns3Server,
        client: AsyncClient,
        journal: Journal,
        wishes: BackupWishes,
        *,
        bar: Bar,
        tell: Callable[[BackupResult], None],
    ) -> None:
        self._server, self._client, self._journal = server, client, journal
        self._wishes, self._bar, self._tell = wishes, bar, tell
        self._last: Failure | None = None  # of the last project that was tried
        self._patience = Patience(server.deadline_s)
        self._owner_id = ""
        self._damages = Damages(client)
        self._newest: dict[str, StoredBackup | Failure | None] = {}
        self._images: NamedImages | None = None

    async def run(self, projects: Sequence[LabProject]) -> list[BackupResult]:
        """One result for each project, in the order in which they are tried.

        Raises FilestoreError before the first one only.
        """
        self._owner_id = (await self._client.whoami()).user_id
        if self._wishes.with_images:
            self._images = NamedImages(
                self._server,
                self._client,
                self._damages,
                owner_id=self._owner_id,
                bucket_id=self._wishes.bucket_id,
                bar=self._bar,
            )
        await self._clean_up()
        await self._look_up(projects)
        results: dict[str, BackupResult] = {}
        for project in self._journal.try_order(projects):
            result = results[project.project_id] = await self._next(project)
            if result.status != "running" or not self._wishes.wait_s:
                self._tell(result)
        for result in await self._wait_for([r.project for r in results.values() if r.status == "running"]):
            results[result.project.project_id] = result
        return list(results.values())

    async def _next(self, project: LabProject) -> BackupResult:
        """The result of a project, which is not tried if the failure of the one before is still there."""
        if (lasts := await self._lasting_failure()) is not None:
            untried = type(lasts)(f"It was skipped. {lasts.details}")
            return BackupResult(project, "failed", errors=(untried,))
        try:
            return await self._back_up(project)
        except ProjectRuns as error:
            return BackupResult(project, "running", errors=(error,))
        except FAILURES as error:
            self._last = error
            return BackupResult(project, "failed", errors=(error,))

    async def _lasting_failure(self) -> Failure | None:
        """The failure of the last project, if others would fail like this, too."""

        async def ask() -> None:
            await self._server.projects()
            await self._client.whoami()

        if self._last is not None and not await self._patience.is_over(self._last, ask):
            self._last = None
        return self._last

    async def _back_up(self, project: LabProject) -> BackupResult:
        newest = self._newest[project.project_id]
        if isinstance(newest, FAILURES):
            raise newest
        began_at = time.time()
        self.refuse(project)
        with self._bar(project.name) as progress:
            outcome = await self.store(project, newest, progress)
        is_stored = outcome.stored is not None
        current = outcome.stored
        if current is None:
            assert newest is not None
            current = newest.file
        images, errors = 0, list[Failure]()
        if self._images is not None:
            images, errors = await self._images.store(current, outcome.topology)
        if not errors:
            has_changed = is_stored and newest is not None
            self._journal.good(project.project_id, at=began_at, changed=has_changed, kind=self.kind)
        await label_version(self._client, current, message=self._wishes.message, tag=self._wishes.tag)
        status: Status = "stored" if is_stored else "unchanged"
        size_bytes = current.size_bytes if is_stored else 0
        kept = (images, tuple(errors), outcome.missing, outcome.consistency)
        return BackupResult(project, status, current.file_uuid, size_bytes, *kept)

    def refuse(self, project: LabProject) -> None:
        """Raise Conflict for a project that must not be backed up as it is."""
        refuse_hidden(project)
        if not self._wishes.accept_loss:
            refuse_foreign(project)

    async def _look_up(self, projects: Sequence[LabProject]) -> None:
        """Find the newest backup of each, before the first export: its server waits for nothing then.

        A look-up that fails is the result of its project. Raises FilestoreError if all would fail.
        """
        limit = asyncio.Semaphore(LOOK_UPS_MAX)

        async def look_up(project: LabProject) -> None:
            async with limit:
                try:
                    newest = await self._newest_of(project)
                except _ENDING:
                    raise
                except FAILURES as error:
                    self._newest[project.project_id] = error
                    return
            if newest is None or newest.is_damaged:
                self._journal.not_good(project.project_id, kind=self.kind, lacks_backup=newest is None)
            self._newest[project.project_id] = newest

        try:
            async with asyncio.TaskGroup() as group:
                for project in projects:
                    group.create_task(look_up(project))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _newest_of(self, project: LabProject) -> StoredBackup | None:
        backups = await stored_backups(self._client, project_id=project.project_id)
        chain = to_continue(chains_of(backups, self._owner_id), self._server.identity, self.kind)
        return await self._damages.marked(chain.newest) if chain is not None else None

    async def store(
        self, project: LabProject, newest: StoredBackup | None, progress: Progress
    ) -> ProjectOutcome:
        """Export a project, and store it if it is new. Repeat a broken export if the server still answers.

        Raises ExportBroken if it breaks off again, Unavailable if the server is gone.
        """
        self._journal.tried(project.project_id, at=time.time())
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                is_sent = self._journal.has_changed(project.project_id)
                return await self._export(project, newest, progress, is_sent=is_sent)
            except ServerUnavailable as error:
                await self._server.projects()
                if attempt == ATTEMPTS_MAX:
                    raise ExportBroken(
                        f"GNS3 server {self._server.name} interrupted the export {attempt} times. Its "
                        f"log says why. {error.details}"
                    ) from error
        raise AssertionError

    async def _export(
        self, project: LabProject, newest: StoredBackup | None, progress: Progress, *, is_sent: bool
    ) -> ProjectOutcome:
        """Export once, and store it if it is new.

        `is_sent` False: a large export is read without being sent as long as it shows no change.
        """
        scan = None if is_sent else await self._change_scan(newest)  # before the server waits for its reader
        async with exporting(self._server, project) as export:
            first, is_whole = await _beginning(export.parts)  # a refusal comes here, before there is a record
            if is_whole:
                return await self._store_buffered(project, first, export, newest, progress)
            head = topology_crc32_of_head(first[:HEAD_BYTES_MAX])
            if newest is None or scan is None or head != newest.fingerprint.topology_crc32:
                return await self._store_stream(project, first, export, newest, progress)
            if scan.has_changed(first):
                return await self._store_stream(project, first, export, newest, progress)
            async for part in export.parts:
                progress(export.scan.size_bytes, newest.file.size_bytes)
                if scan.has_changed(part):
                    break
            else:
                end = await export.finish()
                is_same, missing = await self._compared(newest, end)
                if is_same:
                    return ProjectOutcome(None, missing)
        return await self._export(project, newest, progress, is_sent=True)

    async def _change_scan(self, newest: StoredBackup | None) -> ChangeScan | None:
        """Return the scan for changes since the newest backup; None if no comparison is possible."""
        if newest is None or newest.is_damaged or newest.file.size_bytes <= BUFFERED_BYTES_MAX:
            return None
        try:
            return ChangeScan(await archive_of(self._client, newest))
        except (ExportDamaged, *FAILURES):
            return None

    async def _compared(self, newest: StoredBackup | None, end: ExportEnd) -> tuple[bool, Missing]:
        """Whether the newest backup stands for this export too, and what of the project is missing in it.

        The backup has to record what is missing.
        """
        if newest is None or not newest.holds(end.fingerprint):
            return False, end.missing
        if end.is_heard and end.is_listed and not end.missing.count:
            return True, end.missing
        try:
            recorded = await recorded_missing(self._client, newest.file)
        except FAILURES:
            if await Damages(self._client).is_damaged(newest.file):  # the cluster has noticed it by then
                return False, end.missing
            raise
        missing = known_missing(end, recorded)
        return set(missing.names) <= set(recorded.names), missing

    def _tag_of(self, fingerprint: Fingerprint) -> str:
        """Return the tag of a backup of this server."""
        return BackupTag(fingerprint, self._server.identity).text

    async def _check(self, project: LabProject, newest: StoredBackup | None, end: ExportEnd) -> None:
        if self._wishes.accept_loss:
            return
        unpacked_bytes = 0
        if newest is not None and not newest.is_damaged and newest.file.compression != end.compression:
            with suppress(ExportDamaged):
                unpacked_bytes = (await archive_of(self._client, newest)).unpacked_bytes
        refuse_loss(project, newest, end, newest_unpacked_bytes=unpacked_bytes)

    async def _store_stream(
        self,
        project: LabProject,
        first: bytes,
        export: Export,
        newest: StoredBackup | None,
        progress: Progress,
    ) -> ProjectOutcome:
        """Store an export as it comes. An export that proves to be no new backup at its end is given up."""
        begun: list[str] = []
        missing = NOTHING_MISSING

        async def finish() -> Missing:
            nonlocal missing
            end = await export.finish()
            is_same, missing = await self._compared(newest, end)
            if is_same:
                raise _Unchanged
            await self._check(project, newest, end)
            await self._client.projects.update(begun[0], version_tag=self._tag_of(end.fingerprint))
            return missing

        try:
            content = mark_missing(first, export.parts, finish)
            stored = await self._upload(project, content, begun, newest, progress)
        except _Unchanged:
            stored = None
        return ProjectOutcome(stored, missing)

    async def _store_buffered(
        self,
        project: LabProject,
        content: bytes,
        export: Export,
        newest: StoredBackup | None,
        progress: Progress,
    ) -> ProjectOutcome:
        """Store an export that is in memory as a whole, if it is to be stored; that is known beforehand."""
        end = await export.finish()
        is_same, missing = await self._compared(newest, end)
        if is_same:
            return ProjectOutcome(None, missing)
        await self._check(project, newest, end)
        content = content[:-END_BYTES] + end_with_missing(content[-END_BYTES:], missing)
        tag = self._tag_of(end.fingerprint)
        stored = await self._upload(project, content, [], newest, progress, version_tag=tag)
        return ProjectOutcome(stored, missing)

    async def _upload(
        self,
        project: LabProject,
        content: bytes | AsyncIterator[bytes],
        begun: list[str],
        newest: StoredBackup | None,
        progress: Progress,
        **labels: Any,
    ) -> Project:
        """Upload an export, without the parts that the newest backup has.

        Its file_uuid is in the journal and in `begun` before its first byte is sent.
        """
        name = label_of(project.name)

        def created(file_uuid: str) -> None:
            self._journal.note_begin(file_uuid)
            begun.append(file_uuid)

        if not isinstance(content, bytes) or len(content) > SMALL_BYTES_MAX:
            labels["created"] = created  # else one request has all of it
        try:
            stored = await self._client.files.upload(
                content,
                kind="project",
                progress=progress,
                project_id=project.project_id,
                project_name=name,
                base=newest.file.file_uuid if newest is not None and not newest.is_damaged else "",
                bucket_id=self._wishes.bucket_id or None,
                protect_days=self._wishes.protect_days,
                **self.form(name),
                **labels,
            )
        finally:
            if begun:
                await self._settle(begun[0])
        assert isinstance(stored, Project)
        return stored

    def form(self, name: str) -> dict[str, Any]:
        """Return the fields of a record that say what kind of archive it is."""
        return {
            "filename": f"{name}.gns3project",
            "content_type": "application/zip",
            "compression": self._server.compression,
        }

    async def _settle(self, file_uuid: str) -> None:
        """Forget an upload that has ended. If its state is unknown, the next run checks it."""
        try:
            record = await self._client.projects.get(file_uuid)
        except (NotFound, Gone):
            self._journal.ended(file_uuid)
        except FAILURES:
            return
        else:
            if record.status == "available":
                self._journal.ended(file_uuid)

    async def _clean_up(self) -> None:
        """Give up the uploads that an earlier run has begun, and was killed in; the next run tries again."""
        for file_uuid in self._journal.unfinished:
            try:
                record = await self._client.projects.get(file_uuid)
                if record.status != "available":
                    await self._client.files.delete(file_uuid)
            except (NotFound, Gone):
                pass
            except _ENDING:
                raise
            except FAILURES:
                continue
            self._journal.ended(file_uuid)

    async def _wait_for(self, running: list[LabProject]) -> list[BackupResult]:
        """Back up projects that were running, each when it has stopped; at the end also what still runs."""
        give_up_at = time.monotonic() + self._wishes.wait_s
        results: list[BackupResult] = []
        while self._wishes.wait_s and running:
            for project in list(running):
                lasts = await self._lasting_failure() is not None
                if not lasts and time.monotonic() < give_up_at and await self._runs(project):
                    continue
                running.remove(project)
                if not lasts:
                    with suppress(*FAILURES):  # it is known as it was at first
                        await self._look_up([project])
                results.append(result := await self._next(project))
                self._tell(result)
            if running:
                await asyncio.sleep(STOPPED_POLL_S)
        return results

    async def _runs(self, project: LabProject) -> bool:
        try:
            nodes = await self._server.nodes(project.project_id)
        except FAILURES:
            return False  # the backup says what is wrong
        return any(node.keeps_project_running for node in nodes)


async def _beginning(parts: AsyncIterator[bytes]) -> tuple[bytes, bool]:
    """The first bytes of an export, and whether they are all of it."""
    read = bytearray()
    async for part in parts:
        read += part
        if len(read) > BUFFERED_BYTES_MAX:
            return bytes(read), False
    return bytes(read), True
