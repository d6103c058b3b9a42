"""The background work of one member: `/api/v1/work`. Admins only. Apart: each member answers for itself.

Tested by tests/cluster/test_command_work.py.
"""

from collections.abc import Iterator
from typing import Final

from aiohttp import web

from api.access import authenticate
from api.bodies.work import WorkBody, WorkList
from api.context import API
from api.spec.operation import Answer, OperationTable
from metadata.model.records import UserRecord
from metadata.protocol.queries import CheckAdmin
from runtime.background import WorkState
from runtime.timestamps import rfc3339
from web.app import json_response

OPERATIONS: Final = OperationTable("Cluster")


@OPERATIONS.add(
    "GET /api/v1/work", "show_work", "Show the background work of this member", Answer("The work.", WorkList)
)
async def show(request: web.Request) -> web.Response:
    """Show the background work of the member, with its state by the member's clock. Admins only."""
    caller = await authenticate(request)
    services = request.app[API]
    await services.metadata.read(CheckAdmin(caller=caller), UserRecord)
    workers = await services.work()
    work = list(_bodies({worker: states for worker, states in workers.items() if states is not None}))
    silent = sorted(worker for worker, states in workers.items() if states is None)
    return json_response(WorkList(count=len(work), work=work, silent_workers=silent))


def _bodies(workers: dict[int, list[WorkState]]) -> Iterator[WorkBody]:
    for worker, states in sorted(workers.items()):
        for state in states:
            yield WorkBody(
                worker=worker,
                name=state.name,
                target=state.target,
                state=state.state,
                steps=state.steps,
                failures=state.failures,
                failures_in_row=state.failures_in_row,
                reason=state.reason,
                began_at=rfc3339(state.began_at_ms or None),
                took_ms=int(state.took_s * 1000),
                failed_at=rfc3339(state.failed_at_ms or None),
                next_at=rfc3339(state.next_at_ms or None),
            )
