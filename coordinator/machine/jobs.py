"""Runs of background jobs: one at a time of each, recorded in the log so that a new leader continues it."""

import sqlite3
from typing import Any, NamedTuple

import msgspec

from ca.errors import Conflict, InvalidRequest, NotFound
from coordinator.machine.execution.access import require_admin
from coordinator.machine.execution.change import Change, Question
from metadata.model.records import SCHEDULE, JobRunPage, JobRunRecord
from metadata.protocol.commands import CANCELLED, CancelRun, RecordRun, StartRun, TriggerJob
from metadata.protocol.queries import GetJobRun, GetLastRuns, ListJobRuns

RUNS_RETAINED = 100  # ended ones, of each job
RUNS_TRIMMED_MAX = 2  # in one change; one more than a start can add
RUNNING = "running"
FAILED = "failed"
ENDED = ("completed", FAILED)

_COLUMNS = "run_id, job_name, node_id, invoked_by, started_at_ms, completed_at_ms, status, parameters, result"


def trigger(change: Change, command: TriggerJob) -> JobRunRecord:
    """Begin a run for an admin. Raises Conflict, naming the run, while one of the same job runs."""
    user = require_admin(change.users, command.caller)
    return _begin(change, command, invoked_by=user.user_id, parameters=command.parameters)


def start(change: Change, command: StartRun) -> JobRunRecord:
    """Begin a run because the schedule requires it; otherwise as `trigger`."""
    return _begin(change, command, invoked_by=SCHEDULE, parameters="{}")


def record(change: Change, command: RecordRun) -> JobRunRecord:
    """Record what a run has done, and which coordinator works on it: a new leader names itself.

    Raises NotFound, and Conflict for a run that has ended.
    """
    if command.status != RUNNING and command.status not in ENDED:
        raise InvalidRequest("status: a run is running, completed or failed.")
    earlier = _find(change.db, command.run_id)
    if earlier.status != RUNNING:
        raise Conflict(f"The run {command.run_id} has ended.")
    run = msgspec.structs.replace(
        earlier,
        node_id=command.node_id,
        status=command.status,
        result=command.result,
        completed_at_ms=None if command.status == RUNNING else change.at_ms,
    )
    _update(change.db, run)
    return run


def cancel(change: Change, command: CancelRun) -> JobRunRecord:
    """End a run for good; a repeated call for a cancelled run changes nothing.

    Raises NotFound, and Conflict for a run that has ended otherwise.
    """
    require_admin(change.users, command.caller)
    run = _find(change.db, command.run_id)
    result = _result_of(run)
    if run.status != RUNNING:
        if result.get("error") != CANCELLED:
            raise Conflict(f"The run {command.run_id} has ended.")
        return run
    ended = msgspec.structs.replace(
        run,
        status=FAILED,
        result=msgspec.json.encode(result | {"error": CANCELLED}).decode(),
        completed_at_ms=change.at_ms,
    )
    _update(change.db, ended)
    return ended


def get(question: Question, query: GetJobRun) -> JobRunRecord:
    """Return one run. Admin only."""
    require_admin(question.users, query.caller)
    return _find(question.db, query.run_id)


def list_page(question: Question, query: ListJobRuns) -> JobRunPage:
    """Return one page of runs, oldest first. Admin only."""
    require_admin(question.users, query.caller)
    of_job, values = ("AND job_name = ?", [query.job_name]) if query.job_name else ("", [])
    rows = question.db.execute(
        f"SELECT {_COLUMNS}, sequence FROM job_runs WHERE sequence > ? {of_job} ORDER BY sequence LIMIT ?",
        (query.cursor, *values, query.limit + 1),
    ).fetchall()
    page = rows[: query.limit]
    return JobRunPage([_from_row(row) for row in page], page[-1][-1] if len(rows) > query.limit else 0)


def last(question: Question, query: GetLastRuns) -> list[JobRunRecord]:
    """Return the newest run of each job that ever ran, by name. Admin only."""
    require_admin(question.users, query.caller)
    return newest(question.db)


def newest(db: sqlite3.Connection) -> list[JobRunRecord]:
    """Return the newest run of each job that ever ran, by name."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM job_runs WHERE sequence IN"
        " (SELECT MAX(sequence) FROM job_runs GROUP BY job_name) ORDER BY job_name"
    ).fetchall()
    return [_from_row(row) for row in rows]


def list_running(db: sqlite3.Connection) -> list[JobRunRecord]:
    """Return the runs that have not ended, by the name of their job: at most one of each."""
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM job_runs WHERE status = 'running' ORDER BY job_name"
    ).fetchall()
    return [_from_row(row) for row in rows]


class JobOutcome(NamedTuple):
    """The outcome of a job: when a run last completed, and last sent its result elsewhere; 0 for never.

    `has_failed`: of the last run that has ended.
    """

    completed_at_ms: int = 0
    has_failed: bool = False
    sent_at_ms: int = 0


def outcomes(db: sqlite3.Connection) -> dict[str, JobOutcome]:
    """Return the outcomes by job. A cancelled run counts as neither completed nor failed.

    It reads the runs that are still recorded: RUNS_RETAINED of each job and a few more.
    """
    rows = db.execute(
        "SELECT job_name, completed_at_ms, status,"
        " json_extract(NULLIF(result, ''), '$.sent_to') IS NOT NULL"
        " FROM job_runs WHERE status <> 'running'"
        " AND COALESCE(json_extract(NULLIF(result, ''), '$.error'), '') <> ? ORDER BY sequence",
        (CANCELLED,),
    ).fetchall()
    found: dict[str, JobOutcome] = {}
    for job_name, completed_at_ms, status, is_sent in rows:
        before = found.get(job_name, JobOutcome())
        if status != "completed":
            found[job_name] = JobOutcome(
                before.completed_at_ms, has_failed=True, sent_at_ms=before.sent_at_ms
            )
        else:
            sent_at_ms = completed_at_ms if is_sent else before.sent_at_ms
            found[job_name] = JobOutcome(completed_at_ms, has_failed=False, sent_at_ms=sent_at_ms)
    return found


def last_started_at_ms(db: sqlite3.Connection, job_name: str) -> int | None:
    """Return when the newest run of a job began; None if it never ran."""
    row = db.execute(
        "SELECT started_at_ms FROM job_runs WHERE job_name = ? ORDER BY sequence DESC LIMIT 1", (job_name,)
    ).fetchone()
    return None if row is None else int(row[0])


def _begin(
    change: Change, command: TriggerJob | StartRun, *, invoked_by: str, parameters: str
) -> JobRunRecord:
    _check_new(change.db, command)
    run = JobRunRecord(
        run_id=command.run_id,
        job_name=command.job_name,
        node_id=command.node_id,
        invoked_by=invoked_by,
        started_at_ms=change.at_ms,
        completed_at_ms=None,
        status=RUNNING,
        parameters=parameters,
        result="{}",
    )
    _insert(change, run)
    return run


def _check_new(db: sqlite3.Connection, command: TriggerJob | StartRun) -> None:
    """Raise Conflict while a run of the same job runs, and for an id that exists."""
    under_way = db.execute(
        "SELECT run_id FROM job_runs WHERE status = 'running' AND job_name = ?", (command.job_name,)
    ).fetchone()
    if under_way is not None:
        raise Conflict(f"The job {command.job_name} is running already: {under_way[0]}")
    if db.execute("SELECT 1 FROM job_runs WHERE run_id = ?", (command.run_id,)).fetchone() is not None:
        raise Conflict("A run with this id exists.")


def _insert(change: Change, run: JobRunRecord) -> None:
    """Write a new run, and delete the runs of its job beyond RUNS_RETAINED."""
    change.db.execute(
        "DELETE FROM job_runs WHERE sequence IN (SELECT sequence FROM job_runs WHERE job_name = ?"
        " ORDER BY sequence DESC LIMIT ? OFFSET ?)",
        (run.job_name, RUNS_TRIMMED_MAX, RUNS_RETAINED),
    )
    change.db.execute(
        f"INSERT INTO job_runs (sequence, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            change.log_index,
            run.run_id,
            run.job_name,
            run.node_id,
            run.invoked_by,
            run.started_at_ms,
            run.completed_at_ms,
            run.status,
            run.parameters,
            run.result,
        ),
    )


def _update(db: sqlite3.Connection, run: JobRunRecord) -> None:
    db.execute(
        "UPDATE job_runs SET node_id = ?, status = ?, result = ?, completed_at_ms = ? WHERE run_id = ?",
        (run.node_id, run.status, run.result, run.completed_at_ms, run.run_id),
    )


def _result_of(run: JobRunRecord) -> dict[str, Any]:
    """Return the result of a run so far; empty if it is not a valid object."""
    try:
        return msgspec.json.decode(run.result, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _find(db: sqlite3.Connection, run_id: str) -> JobRunRecord:
    row = db.execute(f"SELECT {_COLUMNS} FROM job_runs WHERE run_id = ?", (run_id,)).fetchone()
    if row is None:
        raise NotFound("There is no such run.")
    return _from_row(row)


def _from_row(row: tuple[Any, ...]) -> JobRunRecord:
    return JobRunRecord(
        run_id=row[0],
        job_name=row[1],
        node_id=row[2],
        invoked_by=row[3],
        started_at_ms=row[4],
        completed_at_ms=row[5],
        status=row[6],
        parameters=row[7],
        result=row[8],
    )
