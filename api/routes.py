"""The routes of the client ports, made from the operations that a process serves.

A coordinator serves METADATA; a node the content of files too.
"""

import re
from collections.abc import Iterable
from typing import Final

from aiohttp import hdrs, web

from api import (
    audit,
    backups,
    buckets,
    cluster,
    coordinators,
    files,
    groups,
    health,
    jobs,
    nodes,
    permissions,
    project_files,
    public_tokens,
    sessions,
    sign_in,
    snapshots,
    trash,
    users,
    vms,
    work,
)
from api.access import watched
from api.console.routes import console_routes
from api.context import API
from api.documentation import Documentation
from api.spec.operation import Handler, Operation
from ca.errors import NotAcceptable
from runtime.time_limits import patient
from web.cors import ConsoleMembers

METADATA: Final[tuple[Operation, ...]] = (
    *project_files.OPERATIONS,
    *vms.OPERATIONS,
    *backups.OPERATIONS,
    *files.OPERATIONS,
    *buckets.OPERATIONS,
    *permissions.OPERATIONS,
    *public_tokens.OPERATIONS,
    *trash.OPERATIONS,
    *users.OPERATIONS,
    *sessions.OPERATIONS,
    *groups.OPERATIONS,
    *sign_in.OPERATIONS,
    *audit.OPERATIONS,
    *jobs.OPERATIONS,
    *cluster.OPERATIONS,
    *nodes.OPERATIONS,
    *coordinators.OPERATIONS,
    *snapshots.OPERATIONS,
    *health.OPERATIONS,
    *work.OPERATIONS,
)
_QUALITY: Final = re.compile(r"q=(0|0\.[0-9]{0,3}|1|1\.0{0,3})", re.IGNORECASE)
_MATCHING: Final = {"application/json": 3, "application/*": 2, "*/*": 1}  # and how specific each is


def client_routes(operations: Iterable[Operation]) -> list[web.RouteDef]:
    """The routes of a client port that serves these operations, their documentation, and the web console.

    Their handlers find what they need in `app[API]` and `app[METRICS]`.
    """
    listed = tuple(operations)
    has_content = any(operation.name == "download_file" for operation in listed)
    console = console_routes(
        has_content=has_content, node_url=_node_url, members=_members, current_members=_current_members
    )
    return [*mounted(Documentation(listed).operations), *console]


def _node_url(request: web.Request) -> str:
    """Return the URL of a node, for a client that needs content. Raises Unavailable."""
    return request.app[API].holder_url(request, "")


def _members(request: web.Request) -> ConsoleMembers:
    """Return the other members that a page may connect to: none if the cluster has a public address."""
    api = request.app[API]
    return api.view.console_members() if api.reaches_nodes(request) else ConsoleMembers()


def _current_members(request: web.Request) -> ConsoleMembers:
    """Return what `_members` returns. Raises Unavailable if the view is too old to exclude revoked nodes."""
    request.app[API].view.require_fresh()
    return _members(request)


def mounted(operations: Iterable[Operation]) -> list[web.RouteDef]:
    """A route for each operation. HEAD comes with GET, unless it is an operation of its own."""
    listed = list(operations)
    own_heads = {operation.path for operation in listed if operation.method == hdrs.METH_HEAD}
    return [
        web.route(
            operation.method,
            operation.path,
            _patient(_json(operation.handler) if operation.is_json else watched(operation.handler)),
            **({"allow_head": operation.path not in own_heads} if operation.method == hdrs.METH_GET else {}),
        )
        for operation in listed
    ]


def accepts_json(accept: str) -> bool:
    """Whether an Accept header takes JSON (RFC 9110, section 12.5.1); an absent one takes anything."""
    best, quality = 0, "" if accept.strip() else "1"
    for element in accept.split(","):
        media_range, *parameters = (part.strip() for part in element.split(";"))
        specific = _MATCHING.get(media_range.lower(), 0)
        if specific > best:
            found = [match[1] for part in parameters if (match := _QUALITY.fullmatch(part))]
            best, quality = specific, found[0] if found else "1"
    return quality.strip("0.") != ""


def _patient(handler: Handler) -> Handler:
    """`handler`, for a client that waits no longer than PATIENCE_S where nothing gets further."""

    async def answering(request: web.Request) -> web.StreamResponse:
        async with patient():
            return await handler(request)

    return answering


def _json(handler: Handler) -> Handler:
    """Wrap a handler that returns JSON: reject clients that do not accept JSON before anything is done."""
    watching = watched(handler)

    async def answering(request: web.Request) -> web.StreamResponse:
        if not accepts_json(", ".join(request.headers.getall(hdrs.ACCEPT, []))):
            raise NotAcceptable("Accept: this endpoint only returns application/json.")
        return await watching(request)

    return answering
