"""Background jobs and their runs: `/api/v1/jobs`. Admins only."""

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import uuid_utils
from aiohttp import web

from api.access import audited, authenticate
from api.bodies.checks import path_uuid
from api.bodies.fields import FilterText
from api.bodies.jobs import JobBody, JobList, JobRunBody, JobRunList, TriggeredRun, TriggerJobBody
from api.bodies.views import shown
from api.context import API, ApiServices
from api.pages import (
    NEXT_PAGE,
    PAGE_PARAMETERS,
    numbered_page,
    page_response,
    page_wanted,
    query_text,
)
from api.spec.operation import Answer, OperationTable, Parameter
from ca.errors import Conflict, NotFound
from ca.identity import check_member_id
from metadata.model.jobs import JOBS, JobKind, job_kind
from metadata.model.records import Caller, JobRunPage, JobRunRecord, NodeRecord, UserRecord
from metadata.protocol.calls import StatusReply
from metadata.protocol.commands import CancelRun, TriggerJob
from metadata.protocol.queries import CheckAdmin, GetJobRun, GetLastRuns, ListJobRuns, ListNodes
from web.app import json_response, read_json

_PATH: Final = "/api/v1/jobs"
_RUNS: Final = f"{_PATH}/runs"
OPERATIONS: Final = OperationTable("Jobs")


@OPERATIONS.add(
    f"POST {_PATH}/{{job_name}}",
    "trigger_job",
    "Start a job",
    Answer("The run was started.", TriggeredRun, headers={"Location": "The path of the run."}),
    status=202,
    body=TriggerJobBody,
    errors=(Conflict,),
    changes=True,
)
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
    return json_response(shown(TriggeredRun, run), status=202, headers={"Location": f"{_RUNS}/{run.run_id}"})


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


@OPERATIONS.add(
    f"GET {_PATH}",
    "list_jobs",
    "List the jobs",
    Answer("A page of jobs.", JobList, headers=NEXT_PAGE),
    query=PAGE_PARAMETERS,
)
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
    return page_response(request, JobList, jobs, next_cursor)


@OPERATIONS.add(
    f"GET {_RUNS}",
    "list_job_runs",
    "List the runs of jobs",
    Answer("A page of runs.", JobRunList, headers=NEXT_PAGE),
    query=(Parameter("job_name", "Only runs of this job.", type=FilterText), *PAGE_PARAMETERS),
)
async def list_runs(request: web.Request) -> web.Response:
    """List the runs, oldest first. The newest hundred finished runs of each job are kept. Admins only."""
    caller = await authenticate(request)
    job_name = query_text(request, "job_name")
    query = ListJobRuns(caller=caller, job_name=job_name, **page_wanted(request))
    page = await request.app[API].metadata.read(query, JobRunPage)
    runs = [body_of(run) for run in page.runs]
    return page_response(request, JobRunList, runs, page.next_cursor, {"job_name": job_name})


@OPERATIONS.add(f"GET {_RUNS}/{{run_id}}", "get_job_run", "Show a run", Answer("The run.", JobRunBody))
async def get_run(request: web.Request) -> web.Response:
    """Show the state and the results of a run. Admins only."""
    caller = await authenticate(request)
    query = GetJobRun(caller=caller, run_id=path_uuid(request, "run_id"))
    return json_response(body_of(await request.app[API].metadata.read(query, JobRunRecord)))


@OPERATIONS.add(
    f"DELETE {_RUNS}/{{run_id}}",
    "cancel_job_run",
    "Cancel a run",
    Answer("The run, which has ended.", JobRunBody),
    errors=(Conflict,),
)
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
    return shown(JobRunBody, run, result=msgspec.json.decode(run.result) if run.result else {})
