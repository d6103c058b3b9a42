"""Projects of a GNS3 server into the store, each as it is exported, without a disk in between.

Whether a project has changed is known at the end of its export only. Of one that has a backup the export is
therefore read first, and sent nowhere; its beginning tells when the topology has changed, and then it is
stored at once. A new backup gets its fingerprint before its last byte: it is never seen without one.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeVar

from ca.errors import Unavailable as ServerUnavailable
from deploy.base.failures import FAILURES, Failure
from deploy.gns3.fingerprint import (
    HEAD_BYTES_MAX,
    ExportDamaged,
    ExportScan,
    Fingerprint,
    topology_crc32_of_head,
)
from deploy.gns3.images import push_image
from deploy.gns3.journal import Journal
from deploy.gns3.records import LabProject, ServerImage, is_built_in
from deploy.gns3.server import Gns3Server, ProjectRuns
from deploy.gns3.stored import StoredBackup, backups_of, label_of, stored_images
from filestore_client import AsyncClient
from filestore_client.base.errors import Gone, NotFound, Unauthorized, Unavailable, UntrustedServer
from filestore_client.base.records import FileRecord, Project
from filestore_client.transfer.creating import SMALL_BYTES_MAX

T = TypeVar("T")
N = TypeVar("N", StoredBackup, StoredBackup | None)
Status = Literal["stored", "unchanged", "running", "failed"]
Progress = Callable[[int, int | None], None]
Bar = Callable[[str], AbstractContextManager[Progress]]

ATTEMPTS_MAX: Final = 2  # of an export that breaks off
LOOK_UPS_MAX: Final = 8  # at once, of the newest backups
STOPPED_POLL_S: Final = 5.0
_STORE_IS_GONE: Final = (Unavailable, Unauthorized, UntrustedServer)


class _Unchanged(Exception):
    """What was about to be stored is what the newest backup has."""


class ExportBroken(ServerUnavailable):
    """An export that is not whole, of a server that answers."""


@dataclass(frozen=True, slots=True)
class BackupResult:
    """What became of one project. `errors`: what kept it, or images of it, from being stored."""

    project: LabProject
    status: Status
    file_uuid: str = ""
    size_bytes: int = 0
    images: int = 0
    errors: Sequence[Failure] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupWishes:
    """How a run is to be made. `wait_s`: so long for projects that run."""

    bucket_id: str = ""
    with_images: bool = False
    wait_s: float = 0.0


class BackupRun:
    """Backs up projects of one server, one after another; `tell` hears of each when it is through."""

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
        self._owner_id = ""
        self._newest: dict[str, StoredBackup | None] = {}
        self._stored_md5s: set[str] | None = None
        self._on_server: list[ServerImage] = []

    async def run(self, projects: Sequence[LabProject]) -> list[BackupResult]:
        """One result for each project, in their order. Raises FilestoreError before the first one only."""
        self._owner_id = (await self._client.whoami()).user_id
        await self._clean_up()
        await self._look_up(projects)
        results: dict[str, BackupResult] = {}
        gone: Failure | None = None
        for project in projects:
            if gone is None:
                result, gone = await self._result_of(project)
            else:
                untried = type(gone)(f"It was not tried. {gone.details}")
                result = BackupResult(project, "failed", errors=(untried,))
            results[project.project_id] = result
            if result.status != "running" or not self._wishes.wait_s:
                self._tell(result)
        for result in await self._wait_for([r.project for r in results.values() if r.status == "running"]):
            results[result.project.project_id] = result
        return list(results.values())

    async def _result_of(self, project: LabProject) -> tuple[BackupResult, Failure | None]:
        """The result, and what ends the whole run, if that has happened."""
        try:
            return await self._back_up(project), None
        except ProjectRuns as error:
            return BackupResult(project, "running", errors=(error,)), None
        except _STORE_IS_GONE as error:
            return BackupResult(project, "failed", errors=(error,)), error
        except FAILURES as error:
            result = BackupResult(project, "failed", errors=(error,))
            is_gone = isinstance(error, ServerUnavailable) and not isinstance(error, ExportBroken)
            return result, error if is_gone else None

    async def _back_up(self, project: LabProject) -> BackupResult:
        newest = self._newest[project.project_id]
        began_at = time.time()
        stored: Project | None = None
        with self._bar(project.name) as progress:
            if newest is None or not await self._again(project, self._is_unchanged, newest, progress):
                stored = await self._again(project, self._store, newest, progress)
        self._journal.good(project.project_id, at=began_at)
        current = stored
        if current is None:
            assert newest is not None
            current = newest.file
        images, errors = await self._store_images(current) if self._wishes.with_images else (0, [])
        return BackupResult(
            project,
            "stored" if stored is not None else "unchanged",
            current.file_uuid,
            stored.size_bytes if stored is not None else 0,
            images,
            tuple(errors),
        )

    async def _look_up(self, projects: Sequence[LabProject]) -> None:
        """Find the newest backup of each, before the first export: its server waits for nothing then.

        Raises FilestoreError.
        """
        limit = asyncio.Semaphore(LOOK_UPS_MAX)

        async def look_up(project: LabProject) -> None:
            async with limit:
                backups = await backups_of(self._client, project.project_id, owner_id=self._owner_id)
            self._newest[project.project_id] = backups[-1] if backups else None

        try:
            async with asyncio.TaskGroup() as group:
                for project in projects:
                    group.create_task(look_up(project))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _again(
        self,
        project: LabProject,
        work: Callable[[LabProject, N, Progress], Awaitable[T]],
        newest: N,
        progress: Progress,
    ) -> T:
        """What `work` gives, begun anew when the export broke off and the server is still there.

        Raises ExportBroken when it breaks off again, Unavailable when the server is gone.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await work(project, newest, progress)
            except ServerUnavailable as error:
                await self._server.projects()
                if attempt == ATTEMPTS_MAX:
                    raise ExportBroken(
                        f"GNS3 server {self._server.name} broke the export off {attempt} times; its log says"
                        f" why. {error.details}"
                    ) from error
        raise AssertionError

    async def _is_unchanged(self, project: LabProject, newest: StoredBackup, progress: Progress) -> bool:
        return await is_unchanged(self._server, project, newest, progress=progress)

    async def _store(
        self, project: LabProject, newest: StoredBackup | None, progress: Progress
    ) -> Project | None:
        """The new backup; None when it turned out to be what the newest has, and nothing was stored."""
        begun: list[str] = []

        def created(file_uuid: str) -> None:
            self._journal.begun(file_uuid)
            begun.append(file_uuid)

        async def finish(fingerprint: Fingerprint) -> None:
            if newest is not None and fingerprint == newest.fingerprint:
                raise _Unchanged
            await self._client.projects.update(begun[0], version_tag=fingerprint.tag)

        upload = self._upload_of(project, progress)
        async with aclosing(self._server.export(project.project_id)) as parts:
            first, is_whole = await _beginning(parts)  # a refusal comes here, before there is a record
            if is_whole:
                return await self._store_small(first, newest, upload)
            try:
                stored = await upload(_scanned(first, parts, finish, self._server.name), created=created)
            except _Unchanged:
                return None
            finally:
                if begun:
                    await self._settle(begun[0])
        assert isinstance(stored, Project)
        return stored

    async def _store_small(
        self, content: bytes, newest: StoredBackup | None, upload: Callable[..., Awaitable[FileRecord]]
    ) -> Project | None:
        """The same for an export that is small: one request has all of it, its fingerprint as well."""
        scan = ExportScan()
        scan.feed(content)
        fingerprint = await _finished(scan, self._server.name)
        if newest is not None and fingerprint == newest.fingerprint:
            return None
        stored = await upload(content, version_tag=fingerprint.tag)
        assert isinstance(stored, Project)
        return stored

    def _upload_of(self, project: LabProject, progress: Progress) -> Callable[..., Awaitable[FileRecord]]:
        """What uploads an export of the project."""
        name = label_of(project.name)
        return partial(
            self._client.files.upload,
            kind="project",
            filename=f"{name}.gns3project",
            content_type="application/zip",
            progress=progress,
            project_id=project.project_id,
            project_name=name,
            compression=self._server.compression,
            bucket_id=self._wishes.bucket_id or None,
        )

    async def _settle(self, file_uuid: str) -> None:
        """Forget an upload that has ended. The next run looks at one of which that is not known."""
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
        """Give up the uploads that an earlier run has begun, and was killed in."""
        for file_uuid in self._journal.unfinished:
            with suppress(NotFound, Gone):
                record = await self._client.projects.get(file_uuid)
                if record.status != "available":
                    await self._client.files.delete(file_uuid)
            self._journal.ended(file_uuid)

    async def _store_images(self, stored: Project) -> tuple[int, list[Failure]]:
        """Store the images that a backup names and the store lacks: how many, and what failed."""
        if self._stored_md5s is None:
            self._stored_md5s = set(await stored_images(self._client))
            self._on_server = await self._server.images()
        count = 0
        errors: list[Failure] = []
        for needed in (await self._client.files.manifest(stored.file_uuid)).images:
            if is_built_in(needed.filename) or needed.md5 in self._stored_md5s:
                continue
            image = self._image_named(needed.filename, needed.md5)
            if image is None:
                if needed.md5:  # else it may be one that Docker fetches
                    told = f"{needed.filename} (MD5 {needed.md5})"
                    errors.append(NotFound(f"The image {told} is neither in the store nor on the server."))
                continue
            if image.checksum in self._stored_md5s:
                continue
            try:
                with self._bar(image.filename) as progress:
                    await push_image(
                        self._server,
                        self._client,
                        image,
                        bucket_id=self._wishes.bucket_id,
                        progress=progress,
                    )
                self._stored_md5s.add(image.checksum)
                count += 1
            except FAILURES as error:
                errors.append(error)
        return count, errors

    def _image_named(self, filename: str, md5: str) -> ServerImage | None:
        """The server's image of this content, or where the project says no checksum, of this name."""
        for image in self._on_server:
            if (image.checksum == md5) if md5 else (image.filename == filename):
                return image
        return None

    async def _wait_for(self, running: list[LabProject]) -> list[BackupResult]:
        """Back up projects that were running, each when it has stopped; at the end also what still runs."""
        give_up_at = time.monotonic() + self._wishes.wait_s
        results: list[BackupResult] = []
        while self._wishes.wait_s and running:
            for project in list(running):
                if await self._runs(project) and time.monotonic() < give_up_at:
                    continue
                running.remove(project)
                with suppress(*FAILURES):  # it is known as it was at first
                    await self._look_up([project])
                result, gone = await self._result_of(project)
                results.append(result)
                self._tell(result)
                if gone is not None:
                    return results
            if running:
                await asyncio.sleep(STOPPED_POLL_S)
        return results

    async def _runs(self, project: LabProject) -> bool:
        try:
            nodes = await self._server.nodes(project.project_id)
        except FAILURES:
            return False  # the backup says what is wrong
        return any(node.keeps_project_running for node in nodes)


async def is_unchanged(
    server: Gns3Server,
    project: LabProject,
    newest: StoredBackup,
    *,
    progress: Progress = lambda _done, _total: None,
) -> bool:
    """Whether an export now would hold what the newest backup holds. Nothing is sent to the store.

    Raises ProjectRuns, ExportBroken, Unavailable.
    """
    scan = ExportScan()
    head: bytes | None = b""
    async with aclosing(server.export(project.project_id)) as parts:
        async for part in parts:
            scan.feed(part)
            progress(scan.size_bytes, newest.file.size_bytes)
            if head is None:
                continue
            head += part
            topology_crc32 = topology_crc32_of_head(head)
            if topology_crc32 is not None and topology_crc32 != newest.fingerprint.topology_crc32:
                return False
            if topology_crc32 is not None or len(head) > HEAD_BYTES_MAX:
                head = None
    return await _finished(scan, server.name) == newest.fingerprint


async def _beginning(parts: AsyncIterator[bytes]) -> tuple[bytes, bool]:
    """The first bytes of an export, and whether they are all of it, which is small then."""
    read = bytearray()
    async for part in parts:
        read += part
        if len(read) > SMALL_BYTES_MAX:
            return bytes(read), False
    return bytes(read), True


async def _scanned(
    first: bytes,
    parts: AsyncIterator[bytes],
    finish: Callable[[Fingerprint], Awaitable[None]],
    server: str,
) -> AsyncGenerator[bytes, None]:
    """The parts of an export; at their end `finish` has the fingerprint before the last of them is stored."""
    scan = ExportScan()
    scan.feed(first)
    yield first
    async for part in parts:
        scan.feed(part)
        yield part
    await finish(await _finished(scan, server))


async def _finished(scan: ExportScan, server: str) -> Fingerprint:
    """Raises ExportBroken for an export that is not whole."""
    try:
        return await asyncio.to_thread(scan.finish)
    except ExportDamaged as error:
        raise ExportBroken(f"What GNS3 server {server} sent is no whole export: {error}.") from error
