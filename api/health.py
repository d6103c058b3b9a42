"""The endpoints for monitoring: whether the process runs, whether it can serve, metrics. No credential.

Tested by tests/cluster/test_starting_members.py.
"""

from typing import Annotated, Final, Literal

from aiohttp import hdrs, web
from msgspec import Meta, Struct

from api.context import API
from api.pages import query_text
from api.spec.operation import NOT_STORED, Answer, OperationTable, Parameter
from ca.errors import InvalidRequest
from ca.hostnames import authority_of
from ca.identity import Role
from runtime.version import VERSION
from web.app import METRICS, json_response

_TAG: Final = "Health"


class Health(Struct, frozen=True, kw_only=True):
    """The process answers, or can serve."""

    status: Annotated[
        str,
        Meta(
            description=(
                "ok of a process that runs; ready of one that can serve; disk_full of one that "
                "serves what it has while its own disk is full."
            ),
            examples=["ready"],
            extra_json_schema={"enum": ["ok", "ready", "disk_full"]},
        ),
    ]
    version: Annotated[str, Meta(description="The version of this process.", examples=["0.1.0"])] = VERSION


class ScrapeTargets(Struct, frozen=True, kw_only=True):
    """Processes that answer `/metrics`, as Prometheus takes them (`http_sd_configs`)."""

    targets: Annotated[
        list[str], Meta(description="Address and port of each target.", examples=[["10.0.0.1:7443"]])
    ]
    labels: Annotated[dict[str, str], Meta(description="Labels of all targets: none.", examples=[{}])]


OPERATIONS: Final = OperationTable(_TAG)


@OPERATIONS.add(
    "GET /healthz",
    "is_alive",
    "Check that the process runs",
    Answer("It does.", Health, headers=NOT_STORED),
    credential="none",
    is_json=False,
)
async def get_liveness(request: web.Request) -> web.Response:  # noqa: ARG001
    """Return ok if the process runs. No credential."""
    return json_response(Health(status="ok"))


@OPERATIONS.add(
    "GET /readyz",
    "is_ready",
    "Check that the process can serve",
    Answer("It can.", Health, headers=NOT_STORED),
    credential="none",
    is_json=False,
)
async def ready(request: web.Request) -> web.Response:
    """Return 200 if the process can serve requests; 503 with the reason otherwise. No credential.

    A process with a full disk serves existing content: its status is `disk_full`, with 200.
    """
    services = request.app[API]
    services.view.require_fresh()
    status = await services.readiness()
    return json_response(Health(status=status))


@OPERATIONS.add(
    "GET /metrics",
    "get_metrics",
    "Show the metrics of the process",
    Answer(
        "One sample a line.",
        media_type="text/plain",
        media_type_else="application/openmetrics-text",
        headers=NOT_STORED,
    ),
    credential="none",
    is_json=False,
)
async def metrics(request: web.Request) -> web.Response:
    """Return the metrics in the Prometheus format, or OpenMetrics if Accept asks for it. No credential."""
    accept, exposition = request.headers.get(hdrs.ACCEPT, ""), request.app[API].exposition
    if exposition is not None:
        text, content_type = await exposition(accept)
    else:
        text, content_type = request.app[METRICS].exposition(accept)
    return web.Response(body=text, headers={hdrs.CONTENT_TYPE: content_type, "Cache-Control": "no-store"})


@OPERATIONS.add(
    "GET /metrics/targets",
    "get_scrape_targets",
    "List the metrics targets of all members",
    Answer("One group of targets.", list[ScrapeTargets], headers=NOT_STORED),
    query=(Parameter("role", "coordinator or node. If absent: both.", type=Literal["coordinator", "node"]),),
    credential="none",
)
async def targets(request: web.Request) -> web.Response:
    """List the metrics targets, for the service discovery of Prometheus. No credential, as for the metrics.

    They are the members that this member knows, of one role (`role=coordinator` or `role=node`) or of both. A
    node is included once it has run.
    """
    role, view = query_text(request, "role"), request.app[API].view.current
    if role not in ("", Role.COORDINATOR, Role.NODE):
        raise InvalidRequest("role: must be coordinator or node")
    found = []
    if role != Role.NODE:
        found += [(each.address, each.api_port) for each in view.coordinators]
    if role != Role.COORDINATOR:
        found += [(each.address, each.api_port) for each in view.nodes if each.peer_port]
    endpoints = [authority_of(address, port) for address, port in found]
    return json_response([ScrapeTargets(targets=endpoints, labels={})])
