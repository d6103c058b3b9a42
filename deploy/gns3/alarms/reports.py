"""The reports of runs and checks in the store: two small files for each server, each replaced by the next.

They are files of the kind backup, named `gns3-report-SERVER_ID.run.json` and `.check.json`. Only those of the
owner of the backups count. A run writes one report at its end, however many projects it has: one upload, and
one deletion of the report before. A file of another owner is never replaced.

Tested by tests/unit/deploy/gns3/alarms/test_reports.py.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from ca.errors import NotFound, Unavailable
from deploy.base.failures import FAILURES, Failure, line_of
from deploy.gns3.alarms.rules import (
    FAILED,
    GONE,
    NO_BACKUP,
    RUN_FAILED,
    Alarm,
    CheckReport,
    CheckVerdict,
    ReportedProject,
    RunReport,
)
from deploy.gns3.identity import SERVER_ID, ServerIdentity
from deploy.gns3.journal import Journal, ProjectMemory
from filestore_client import AsyncClient
from filestore_client.base.records import Backup
from runtime.timestamps import rfc3339

BEGINNING: Final = "gns3-report-"
RUN_ENDING: Final = ".run.json"
CHECK_ENDING: Final = ".check.json"
STORE_S_MAX: Final = 15.0  # a run whose report is not stored by then ends without one
ERROR_CHARS_MAX: Final = 300
REPORT_BYTES_MAX: Final = 8_000_000  # some ten thousand projects; the console reads no larger one either
VERSION: Final = 1
_NAME: Final = re.compile(rf"{BEGINNING}({SERVER_ID.pattern})\.(run|check)\.json")

R = TypeVar("R", RunReport, CheckReport)


@dataclass(frozen=True, slots=True)
class ServerReports:
    """The reports of a server of one owner; None for one that there is not."""

    run: RunReport | None
    checks: CheckReport | None


def run_report(journal: Journal, server: ServerIdentity, *, now_s: float) -> RunReport:
    """Return the report of what a journal knows."""
    runs = journal.runs
    good_at = journal.good_at()
    alarms: list[Alarm] = []
    if runs.error:
        alarms.append(Alarm(code=RUN_FAILED, text=f"The last run failed: {runs.error}"))
    for project_id, memory in journal.memories.items():
        alarms += _alarms_of_project(project_id, memory, kind=runs.kind)
    return RunReport(
        server_id=server.id,
        server=server.name,
        kind=runs.kind,
        overdue_after_s=runs.overdue_after_s,
        written_at=_time(now_s),
        ended_at=_time(runs.ended_at),
        projects={
            project_id: ReportedProject(
                name=memory.name, good_at=_time(good_at[project_id]), status=memory.status
            )
            for project_id, memory in journal.memories.items()
        },
        alarms=tuple(alarms),
    )


def _alarms_of_project(project_id: str, memory: ProjectMemory, *, kind: str) -> Iterator[Alarm]:
    if memory.gone_at:
        text, since = "The GNS3 server does not list the project", _time(memory.gone_at)
        yield Alarm(code=GONE, text=text, project_id=project_id, name=memory.name, since=since)
        return
    if memory.error and memory.status != "running":
        text = f"The last backup failed: {memory.error}"
        yield Alarm(code=FAILED, text=text, project_id=project_id, name=memory.name)
    if memory.lacks_backup:
        text = "The project has no full backup" if kind == "full" else "The project has no backup"
        yield Alarm(code=NO_BACKUP, text=text, project_id=project_id, name=memory.name)


@asynccontextmanager
async def report_at_end(
    report: Callable[[], Awaitable[Sequence[Failure]]],
    journal: Journal,
    *,
    notes_failure: bool,
    failed: list[Failure],
) -> AsyncIterator[None]:
    """Await `report` when a run ends, also by a Failure; what it returns is added to `failed`.

    `notes_failure`: the Failure is one of a run of all projects, and belongs into the report.
    """
    try:
        yield
    except FAILURES as error:
        if notes_failure:
            journal.note_end(told([error]), at=time.time(), of_all=False)
        failed += await report()
        raise
    failed += await report()


async def store_run_report(
    journal: Journal, server: ServerIdentity, client: AsyncClient, *, bucket_id: str = ""
) -> list[Failure]:
    """Store the report of a journal, unless nothing is expected. Return what prevented it."""
    if not journal.runs.kind:
        return []
    report = run_report(journal, server, now_s=time.time())
    try:
        async with asyncio.timeout(STORE_S_MAX):
            await _store(client, f"{BEGINNING}{server.id}{RUN_ENDING}", report, bucket_id=bucket_id)
    except TimeoutError:
        return [Unavailable(f"The store did not answer within {STORE_S_MAX:g} s.")]
    except FAILURES as error:
        return [error]
    return []


async def note_checks(
    client: AsyncClient, checked: Mapping[ServerIdentity, Mapping[str, CheckVerdict]]
) -> None:
    """Add the results of `verify` of the caller's backups, by their file_uuids. Raises FilestoreError.

    Results of older backups of the same projects are dropped.
    """
    owner_id = (await client.whoami()).user_id
    for server, backups in checked.items():
        named = f"{BEGINNING}{server.id}{CHECK_ENDING}"
        records = [each for each in await _records(client, named) if each.owner_id == owner_id]
        before = await _read(client, records[-1], CheckReport) if records else None
        known = before.backups if before is not None else {}
        newer = {(each.project_id, each.kind) for each in backups.values()}
        kept = {uuid: each for uuid, each in known.items() if (each.project_id, each.kind) not in newer}
        report = CheckReport(server_id=server.id, server=server.name, backups={**kept, **backups})
        if before != report:
            await _store(client, named, report, bucket_id=records[-1].bucket_id if records else "")


async def stored_reports(client: AsyncClient, owner_id: str) -> dict[str, ServerReports]:
    """Return the newest reports of one owner, by the identities of servers. Raises FilestoreError.

    Their texts are the owner's, who may not be the caller.
    """
    newest: dict[str, Backup] = {}
    server_ids: dict[str, None] = {}  # in order
    for record in await _records(client, BEGINNING):
        name = _NAME.fullmatch(record.filename)
        if name is not None and record.owner_id == owner_id:
            newest[record.filename] = record
            server_ids[name[1]] = None
    found: dict[str, ServerReports] = {}
    for server_id in server_ids:
        run, checks = (newest.get(f"{BEGINNING}{server_id}{ending}") for ending in (RUN_ENDING, CHECK_ENDING))
        found[server_id] = ServerReports(
            await _read(client, run, RunReport) if run else None,
            await _read(client, checks, CheckReport) if checks else None,
        )
    return found


async def _records(client: AsyncClient, beginning: str) -> list[Backup]:
    """The available records whose names begin so, in the order of the log."""
    return [each async for each in client.backups.list(filename=beginning, status="available")]


async def _read(client: AsyncClient, record: Backup, report: type[R]) -> R | None:
    """Return a report; None for one of a later release, one that is none, or one that a run has replaced."""
    if record.size_bytes > REPORT_BYTES_MAX:
        return None
    try:
        content = b"".join([part async for part in client.files.read(record.file_uuid)])
        found = msgspec.json.decode(content, type=report)
    except (NotFound, msgspec.MsgspecError):
        return None
    return found if found.version == VERSION else None


async def _store(client: AsyncClient, filename: str, report: Any, *, bucket_id: str) -> None:
    before = await _records(client, filename)
    stored = await client.files.upload(
        msgspec.json.encode(report),
        kind="backup",
        filename=filename,
        content_type="application/json",
        bucket_id=bucket_id or None,
        protect_days=0,
    )
    for each in before:
        if each.filename == filename and each.owner_id == stored.owner_id:
            with suppress(*FAILURES):  # the next run deletes it
                await client.files.delete(each.file_uuid, now=True)


def _time(at_s: float) -> str:
    return rfc3339(int(at_s * 1000))


def told(errors: Sequence[Failure]) -> str:
    """Return the errors of a result on one line, as a report has them."""
    return "; ".join(line_of(error) for error in errors)[:ERROR_CHARS_MAX]
