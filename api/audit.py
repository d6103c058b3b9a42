"""The audit log of this member: `/api/v1/audit`. Who wants that of the cluster asks every member."""

from typing import Final

from aiohttp import web
from msgspec import UNSET

from api.access import authenticate
from api.bodies.audit import AuditCursor, AuditEntryBody, AuditFilters, AuditList, SinceSeconds
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, page_response, query_limit, query_number, query_text
from api.spec.operation import Answer, Operation, Parameter, parameters_of
from ca.errors import InvalidRequest
from metadata.model.identifiers import is_uuid
from metadata.model.records import UserRecord
from metadata.protocol.queries import CheckAdmin
from runtime.audit_pages import AuditEntry, AuditFilter
from runtime.bounds import LIFE_SECONDS_MAX
from runtime.clock import now_ms
from runtime.timestamps import parse_rfc3339

_LIMIT: Final = PAGE_PARAMETERS[0]


async def list_page(request: web.Request) -> web.Response:
    """List what people did through this member, newest first. Admins only.

    The member keeps 320 MiB of entries, which is more than a million. Attempts without a valid credential are
    included. They are kept separately (96 MiB), so that they do not displace other entries. Each member has
    its own logs.
    """
    caller = await authenticate(request)
    filters = {name: query_text(request, name) for name in AuditFilters.__struct_fields__}
    since_seconds = query_number(request, "since_seconds", 0, LIFE_SECONDS_MAX)
    wanted = _wanted(filters, since_seconds)
    limit, cursor = query_limit(request), query_text(request, "cursor")
    services = request.app[API]
    await services.metadata.read(CheckAdmin(caller=caller), UserRecord)
    page = await services.audit.pages.read(wanted, limit=limit, cursor=cursor)
    answer = AuditList(
        count=len(page.entries),
        entries=[_body_of(entry) for entry in page.entries],
        next_cursor=page.next_cursor or UNSET,
    )
    return page_response(request, answer, page.next_cursor, **filters, since_seconds=str(since_seconds or ""))


def _wanted(filters: dict[str, str], since_seconds: int) -> AuditFilter:
    """`since_seconds` 0 is none. Raises InvalidRequest."""
    if since_seconds and filters["since"]:
        raise InvalidRequest("since_seconds: cannot be combined with since")
    since_ms = now_ms() - 1000 * since_seconds if since_seconds else None
    target = filters["target"]
    return AuditFilter(
        principal=filters["principal"],
        action=filters["action"],
        target=target.lower() if is_uuid(target.lower()) else target,
        since_ms=parse_rfc3339(filters["since"], "since") if filters["since"] else since_ms,
        until_ms=parse_rfc3339(filters["until"], "until") if filters["until"] else None,
    )


def _body_of(entry: AuditEntry) -> AuditEntryBody:
    return AuditEntryBody(
        time=entry.time,
        action=entry.action,
        principal=entry.principal,
        target=entry.object,
        outcome=entry.outcome,
        request_id=entry.request_id,
        client_address=entry.client_address,
    )


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="list_audit_entries",
        tag="Audit",
        method="GET",
        path="/api/v1/audit",
        handler=list_page,
        summary="List audit entries",
        query=(
            *parameters_of(AuditFilters),
            Parameter(
                name="since_seconds",
                description="Only entries of the last N seconds, by this member's clock.",
                type=SinceSeconds,
            ),
            _LIMIT,
            Parameter(name="cursor", description="`next_cursor` of the previous page.", type=AuditCursor),
        ),
        answers={200: Answer(description="A page of entries.", body=AuditList, headers=NEXT_PAGE)},
    ),
)
