"""Background jobs and their runs: `/api/v1/jobs`. Admins only."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import uuid_utils
from aiohttp import web

from api.access import audited, authenticate
from api.bodies.checks import path_uuid
from api.bodies.fields import FilterText
from api.bodies.jobs import JobBody, JobList, JobRunBody, JobRunList, TriggeredRun, TriggerJobBody
from api.context import API, ApiServices
from api.pages import (
    NEXT_PAGE,
    PAGE_PARAMETERS,
    cursor_text,
    numbered_page,
    page_response,
    query_cursor,
    query_limit,
    query_text,
)
from api.spec.operation import Answer, Operation, Parameter
from ca.errors import Conflict, NotFound
from ca.identity import check_member_id
from metadata.model.jobs import JOBS, JobKind, job_kind
from metadata.model.records import Caller, JobRunPage, JobRunRecord, NodeRecord, UserRecord
from metadata.protocol.calls import StatusReply
from metadata.protocol.commands import CancelRun, TriggerJob
from metadata.protocol.queries import CheckAdmin, GetJobRun, GetLastRuns, ListJobRuns, ListNodes
from runtime.timestamps import rfc3339
from web.app import json_response, read_json

_PATH: Final = "/api/v1/jobs"
_RUNS: Final = f"{_PATH}/runs"


async def trigger(request: web.Request) -> web.Response:
    """Start a job on the leading coordinator, which answers at once. Admins only.

    If the job is already running, the response is a conflict whose details name the run.
    """
    caller = await authenticate(request)
    body = await read_json(request, TriggerJobBody)
    kind = await _kind(request, caller)
    if body.node_id:
        await _require_node(request.app[API], caller, check_member_id(body.node_id, "node_id"))
    command = TriggerJob(
        caller=caller,
        run_id=str(uuid_utils.uuid7()),
        job_name=kind.name,
        parameters=msgspec.json.encode(body).decode(),
    )
    async with audited(request, "trigger_job", principal=caller.subject, target=kind.name):
        run = await request.app[API].metadata.propose(command, JobRunRecord)
    answer = TriggeredRun(run_id=run.run_id, job_name=run.job_name, status=run.status)
    return json_response(answer, status=202, headers={"Location": f"{_RUNS}/{run.run_id}"})


async def _kind(request: web.Request, caller: Caller) -> JobKind:
    """The job in the path. Raises NotFound, which says what there is; for others than admins Forbidden."""
    try:
        return job_kind(request.match_info["job_name"])
    except NotFound:
        await request.app[API].metadata.read(CheckAdmin(caller=caller), UserRecord)
        raise


async def _require_node(services: ApiServices, caller: Caller, node_id: str) -> None:
    """Raises NotFound when there is no such node, Forbidden when the caller is no admin."""
    records = await services.metadata.read(ListNodes(caller=caller), list[NodeRecord])
    if all(record.node_id != node_id for record in records):
        raise NotFound(f"No such node: {node_id}.")


async def list_jobs(request: web.Request) -> web.Response:
    """List the jobs by name, with the newest run of each and its schedule. Admins only."""
    caller = await authenticate(request)
    kinds = sorted(JOBS, key=lambda kind: kind.name)
    page, next_cursor = numbered_page(request, enumerate(kinds, start=1))
    metadata = request.app[API].metadata
    runs = await metadata.read(GetLastRuns(caller=caller), list[JobRunRecord])
    newest = {run.job_name: body_of(run) for run in runs}
    schedules = _schedules(await metadata.status(caller))
    jobs = [
        JobBody(
            job_name=kind.name,
            description=kind.description,
            schedule_s=math.ceil(schedules.get(kind.name, kind.schedule_s)),
            last_run=newest.get(kind.name, msgspec.UNSET),
        )
        for kind in page
    ]
    answer = JobList(count=len(jobs), jobs=jobs, next_cursor=cursor_text(next_cursor))
    return page_response(request, answer, next_cursor)


async def list_runs(request: web.Request) -> web.Response:
    """List the runs, oldest first. The newest hundred finished runs of each job are kept. Admins only."""
    caller = await authenticate(request)
    job_name = query_text(request, "job_name")
    query = ListJobRuns(
        caller=caller, job_name=job_name, limit=query_limit(request), cursor=query_cursor(request)
    )
    page = await request.app[API].metadata.read(query, JobRunPage)
    answer = JobRunList(
        count=len(page.runs),
        runs=[body_of(run) for run in page.runs],
        next_cursor=cursor_text(page.next_cursor),
    )
    return page_response(request, answer, page.next_cursor, job_name=job_name)


async def get_run(request: web.Request) -> web.Response:
    """Show the state and the results of a run. Admins only."""
    caller = await authenticate(request)
    query = GetJobRun(caller=caller, run_id=path_uuid(request, "run_id"))
    return json_response(body_of(await request.app[API].metadata.read(query, JobRunRecord)))


async def cancel_run(request: web.Request) -> web.Response:
    """Cancel a run: it has then failed, with the error `cancelled`. Admins only.

    Its results so far are kept. The response may be sent before the current step has ended. Repeating the
    request returns the same response. A run that has ended in another way is a conflict.
    """
    caller = await authenticate(request)
    run_id = path_uuid(request, "run_id")
    async with audited(request, "cancel_job_run", principal=caller.subject, target=run_id):
        command = CancelRun(caller=caller, run_id=run_id)
        run = await request.app[API].metadata.propose(command, JobRunRecord)
    return json_response(body_of(run))


def _schedules(replies: Mapping[str, StatusReply | None]) -> dict[str, float]:
    """How often the leader runs each job, in seconds; nothing while the leader does not answer."""
    led = [reply for reply in replies.values() if reply is not None and reply.coordinator.role == "leader"]
    return max(led, key=lambda reply: reply.coordinator.term).schedules if led else {}


def body_of(run: JobRunRecord) -> JobRunBody:
    """A run as the API shows it."""
    result: Any = msgspec.json.decode(run.result) if run.result else {}
    return JobRunBody(
        run_id=run.run_id,
        job_name=run.job_name,
        node_id=run.node_id,
        invoked_by=run.invoked_by,
        started_at=rfc3339(run.started_at_ms),
        completed_at=rfc3339(run.completed_at_ms),
        status=run.status,
        result=result,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="list_jobs",
        tag="Jobs",
        method="GET",
        path=_PATH,
        handler=list_jobs,
        summary="List the jobs",
        query=PAGE_PARAMETERS,
        answers={200: Answer(description="A page of jobs.", body=JobList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="list_job_runs",
        tag="Jobs",
        method="GET",
        path=_RUNS,
        handler=list_runs,
        summary="List the runs of jobs",
        query=(
            Parameter(name="job_name", description="Only runs of this job.", type=FilterText),
            *PAGE_PARAMETERS,
        ),
        answers={200: Answer(description="A page of runs.", body=JobRunList, headers=NEXT_PAGE)},
    ),
    Operation(
        name="get_job_run",
        tag="Jobs",
        method="GET",
        path=f"{_RUNS}/{{run_id}}",
        handler=get_run,
        summary="Show a run",
        answers={200: Answer(description="The run.", body=JobRunBody)},
    ),
    Operation(
        name="cancel_job_run",
        tag="Jobs",
        method="DELETE",
        path=f"{_RUNS}/{{run_id}}",
        handler=cancel_run,
        summary="Cancel a run",
        answers={200: Answer(description="The run, which has ended.", body=JobRunBody)},
        errors=(Conflict,),
    ),
    Operation(
        name="trigger_job",
        tag="Jobs",
        method="POST",
        path=f"{_PATH}/{{job_name}}",
        handler=trigger,
        summary="Start a job",
        body=TriggerJobBody,
        is_body_required=False,
        answers={
            202: Answer(
                description="The run was started.",
                body=TriggeredRun,
                headers={"Location": "The path of the run."},
            )
        },
        errors=(Conflict,),
        changes=True,
    ),
)
