"""Run the jobs that are running by the log: those of this leader, and of leaders before it.

A run begins and ends in the log, so none is lost with the member that worked on it: the next leader records
itself in the run and continues. The work consists of ordinary commands, which only a leader can commit, so no
other member works on the same run. A temporary obstacle (the lead is lost, nothing is committed, the process
ends) leaves the run running; an error of the work itself makes it failed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
import uuid_utils

from ca.errors import Conflict, FilestoreError, InsufficientStorage, Unavailable
from coordinator.machine.jobs import JobOutcome, last_started_at_ms
from coordinator.member.driver import Driver
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import Entry
from coordinator.rpc.server import Refused, value_of
from coordinator.storage.state_store import Store
from metadata.model.jobs import JobKind, JobParameters, decode_parameters
from metadata.model.records import SCHEDULE, JobRunRecord
from metadata.protocol.calls import CALL_TIMEOUT_S
from metadata.protocol.commands import AnyCommand, RecordRun, StartRun
from runtime.background import Work
from runtime.clock import now_ms

LOOK_S = 1.0  # between two looks for runs, without a notice
NOTE_S = 1.0  # a run's progress is written to the log at most this often
COUNT_S = 10.0  # the rest is counted at most this often: 70 ms of the leader per million replicas
RETRY_S = 1.0  # before resuming a run that was stopped while this member leads
ERROR_CHARACTERS_MAX = 500
_TAGS = (b"trigger_job", b"start_run", b"cancel_run")  # avoid decoding every entry
LOOK_AGAIN_S = 3600.0  # whether a job is due that runs more seldom
SELDOM_S = 600.0  # between two runs: then a change of leader must not advance the next one

Result = dict[str, int | str]
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def _sure() -> str:
    return ""


class Interrupted(Exception):
    """This member cannot continue a run now; it, or the next leader, will."""


class StepProgress:
    """A run as its work sees it. `result` is the result so far, including that of earlier leaders.

    It lacks their last NOTE_S, and what this version cannot read. The names of the counts are those in the
    JobKind: so metrics and `status` show the progress of the run.
    """

    def __init__(
        self, own_id: str, driver: Driver, run: JobRunRecord, doubt: Callable[[], str] = _sure
    ) -> None:
        """Track a run. `doubt` returns why nothing may be done for it now; "" without a reason."""
        self._own_id = own_id
        self._driver = driver
        self._run = run
        self._doubt = doubt
        self._noted_at_s = float("-inf")
        self._counted_at_s = float("-inf")
        self.result: Result = _result_of(run)
        self.count_left: Callable[[], int] | None = None  # for `left`: called every COUNT_S, and at the end

    @property
    def run_id(self) -> str:
        """Return the id of the run, the same for every leader that works on it."""
        return self._run.run_id

    @property
    def is_scheduled(self) -> bool:
        """Return whether the run was started by the schedule."""
        return self._run.invoked_by == SCHEDULE

    @property
    def parameters(self) -> JobParameters:
        """Return the parameters of the run. Raises InvalidRequest if they are from a newer version."""
        return decode_parameters(self._run.parameters)

    def add(self, **counts: int) -> None:
        """Add to the counts of the result."""
        for name, count in counts.items():
            self.result[name] = int(self.result.get(name, 0)) + count

    async def apply(self, command: AnyCommand, reply_type: type[_T]) -> _T:
        """Return the reply of the command.

        Raises Refused, Conflict for a doubt, or Interrupted if the command is not committed.
        """
        if why := self._doubt():
            raise Conflict(why)
        return await apply_command(self._driver, command, reply_type)

    async def note(self) -> None:
        """Write the result so far to the log, if that was not done in the last NOTE_S."""
        if time.monotonic() - self._noted_at_s >= NOTE_S:
            self._noted_at_s = time.monotonic()  # before it is written: many ask at once
            await self.record("running")

    async def record(self, status: str) -> None:
        """Write status and result to the log. Raises Interrupted if the run has ended already."""
        self._count(is_last=status != "running")
        command = RecordRun(
            run_id=self._run.run_id,
            node_id=self._own_id,
            status=status,
            result=msgspec.json.encode(self.result).decode(),
        )
        try:
            await apply_command(self._driver, command, JobRunRecord)
        except Refused as refusal:
            raise Interrupted(refusal.details) from refusal
        self._noted_at_s = time.monotonic()

    def _count(self, *, is_last: bool) -> None:
        at_s = time.monotonic()
        if self.count_left is None or (at_s - self._counted_at_s < COUNT_S and not is_last):
            return
        self.result["left"] = self.count_left()
        self._counted_at_s = at_s


JobWork = Callable[[StepProgress], Coroutine[Any, Any, None]]


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its work here. `is_due` returns, at its time, whether there is work.

    `is_sent`: its result is sent to another place: an unsent result is due.
    """

    kind: JobKind
    work: JobWork
    is_due: Callable[[], bool] = _always
    is_sent: bool = False


class JobRuns:
    """Works on runs of these jobs while this member leads.

    `schedules`: seconds, in place of the defaults of the jobs. `clock_doubt` returns why no record may expire
    now, "" without a reason. `clock_ms`: the time of the cluster, which dates runs.
    """

    def __init__(
        self,
        own_id: str,
        driver: Driver,
        store: Store,
        jobs: Sequence[Job],
        *,
        schedules: Mapping[str, float] | None = None,
        clock_doubt: Callable[[], str] = _sure,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._own_id = own_id
        self._driver = driver
        self._store = store
        self._jobs = {job.kind.name: job for job in jobs}
        self._schedules = schedules or {}
        self._clock_doubt = clock_doubt
        self._clock_ms = clock_ms
        self._working: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._scheduled_at_s: dict[str, float] = {}  # when the schedule of each job was last checked

    async def run(self) -> None:
        """Run until cancelled, which stops all work and leaves its runs running."""
        every_s = min([LOOK_S, *(schedule_s for schedule_s in self._schedules.values() if schedule_s > 0)])
        async with asyncio.TaskGroup() as group:
            await Work(
                "jobs",
                partial(self._look, group),
                every_s=every_s,
                first_s=every_s,
                event=self._changed,
                fails=(Interrupted,),
                level=logging.DEBUG,
                trouble="no job is started now",
            ).run()

    def deliver(self, entries: Sequence[Entry]) -> None:
        """Process applied entries: look at once if they begin or end a run."""
        if any(tag in entry.data for entry in entries for tag in _TAGS):
            self._changed.set()

    async def _look(self, group: asyncio.TaskGroup) -> None:
        if not self._driver.is_leader:
            self._stop()
            return
        self._stop_ended()
        await self._start_scheduled()
        for run in await self._waiting():
            self._working[run.run_id] = group.create_task(self._work(run), name=run.job_name)

    def _stop(self) -> None:
        for task in self._working.values():
            task.cancel()
        self._scheduled_at_s.clear()

    def _stop_ended(self) -> None:
        """End the work on cancelled runs."""
        running = {run.run_id for run in self._store.running_runs()} if self._working else set()
        for run_id, task in self._working.items():
            if run_id not in running and not task.cancelling():
                task.cancel()

    async def _start_scheduled(self) -> None:
        """Start a run of each job whose time has come, if there is something for it to do."""
        at_s = time.monotonic()
        due = [(name, job) for name, job in self._jobs.items() if self._is_its_time(job, at_s)]
        running = {run.job_name for run in self._store.running_runs()} if due else set()
        for name, job in due:
            self._scheduled_at_s[name] = at_s
            if name not in running and self._has_work(job) and not self._is_in_doubt(job):
                command = StartRun(run_id=str(uuid_utils.uuid7()), job_name=name, node_id=self._own_id)
                try:
                    await apply_command(self._driver, command, JobRunRecord)
                except Refused as refusal:
                    _log.debug("the job %s is not started: %s", name, refusal.details)

    def _is_its_time(self, job: Job, at_s: float) -> bool:
        last_s = self._scheduled_at_s.get(job.kind.name, float("-inf"))
        schedule_s = self._schedule_s(job)
        # A job that was not due may be soon. A sent one is due until it is sent, and each try makes a copy.
        wait_s = schedule_s if job.is_sent else min(schedule_s, LOOK_AGAIN_S)
        return schedule_s > 0 and at_s - last_s >= wait_s

    def _schedule_s(self, job: Job) -> float:
        return self._schedules.get(job.kind.name, job.kind.schedule_s)

    def _has_work(self, job: Job) -> bool:
        schedule_s = self._schedule_s(job)
        if schedule_s >= SELDOM_S:
            # A new leader has checked nothing yet: the log has the time of the last run.
            last_ms = self._last_at_ms(job)
            # In both directions: after a fast clock, the job must not wait for ever.
            if last_ms is not None and abs(self._clock_ms() - last_ms) < schedule_s * 1000:
                return False
        return job.is_due()

    def _last_at_ms(self, job: Job) -> int | None:
        """Return when the newest run began, or was sent for a sent job; None if there is none."""
        if not job.is_sent:
            return self._store.read_with(partial(last_started_at_ms, job_name=job.kind.name))
        return self._store.job_outcomes().get(job.kind.name, JobOutcome()).sent_at_ms or None

    def _is_in_doubt(self, job: Job) -> bool:
        if why := self._doubt_of(job)():
            _log.error("the job %s is not started: %s", job.kind.name, why)
        return bool(why)

    def _doubt_of(self, job: Job) -> Callable[[], str]:
        return self._clock_doubt if job.kind.ends_by_the_clock else _sure

    async def _waiting(self) -> list[JobRunRecord]:
        """Return the runs without work here, as of everything that was committed before."""
        if not self._unattended():
            return []
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                # A new leader's state may lag: a run that looks unfinished there may have ended.
                await self._driver.read_barrier()
        except (Unavailable, TimeoutError) as error:
            raise Interrupted("no quorum answers") from error
        return self._unattended() if self._driver.is_leader else []

    def _unattended(self) -> list[JobRunRecord]:
        return [
            run
            for run in self._store.running_runs()
            if run.run_id not in self._working and run.job_name in self._jobs
        ]

    async def _work(self, run: JobRunRecord) -> None:
        try:
            await self._work_to_its_end(run)
        except Interrupted as reason:
            _log.info("the run %s of the job %s is interrupted: %s", run.run_id, run.job_name, reason)
            await asyncio.sleep(RETRY_S)
        finally:
            del self._working[run.run_id]

    async def _work_to_its_end(self, run: JobRunRecord) -> None:
        job = self._jobs[run.job_name]
        progress = StepProgress(self._own_id, self._driver, run, self._doubt_of(job))
        await progress.record("running")  # from here on the run is ours
        _log.info("the run %s of the job %s starts or resumes", run.run_id, run.job_name)
        status = "completed"
        try:
            await job.work(progress)
        except Exception as error:  # any such error would affect the next leader too
            cause = _cause(error)
            if isinstance(cause, Interrupted):
                raise cause from error
            # A FilestoreError explains itself; for other errors the place matters.
            trace = None if isinstance(cause, FilestoreError) else error
            _log.error("the run %s of the job %s failed", run.run_id, run.job_name, exc_info=trace)
            status = "failed"
            progress.result["error"] = _text(cause)
        await progress.record(status)
        _log.info("the run %s of the job %s %s: %s", run.run_id, run.job_name, status, progress.result)


async def apply_command(driver: Driver, command: AnyCommand, reply_type: type[_T]) -> _T:
    """Return the reply of a command of this coordinator itself.

    Raises Refused, or Interrupted if the command is not committed.
    """
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            reply = await driver.propose(command)
    except (NotLeader, Unavailable, InsufficientStorage, TimeoutError) as error:
        raise Interrupted(_text(error)) from error
    return msgspec.msgpack.decode(value_of(reply), type=reply_type)


def _result_of(run: JobRunRecord) -> Result:
    try:
        return msgspec.json.decode(run.result, type=Result)
    except msgspec.MsgspecError:
        return {}


def _cause(error: Exception) -> Exception:
    """Return the error that ended work of several tasks; an interrupted one is not the cause."""
    while isinstance(error, ExceptionGroup):
        interrupted, _ = error.split(Interrupted)
        error = (interrupted or error).exceptions[0]
    return error


def _text(error: Exception) -> str:
    text = error.details if isinstance(error, FilestoreError) else str(error)
    return (text or type(error).__name__)[:ERROR_CHARACTERS_MAX]
