"""The audit log of this member: `/api/v1/audit`. Apart from the log of the cluster: each has its own."""

from typing import Final

from aiohttp import web

from api.access import authenticate
from api.bodies.audit import AuditCursor, AuditEntryBody, AuditFilters, AuditList, SinceSeconds
from api.bodies.views import shown
from api.context import API
from api.pages import NEXT_PAGE, PAGE_PARAMETERS, page_response, query_limit, query_number, query_text
from api.spec.operation import Answer, OperationTable, Parameter, parameters_of
from ca.errors import InvalidRequest
from metadata.model.identifiers import is_uuid
from metadata.model.records import UserRecord
from metadata.protocol.queries import CheckAdmin
from runtime.audit_pages import AuditFilter
from runtime.bounds import LIFE_SECONDS_MAX
from runtime.clock import now_ms
from runtime.timestamps import parse_rfc3339

_LIMIT: Final = PAGE_PARAMETERS[0]
OPERATIONS: Final = OperationTable("Audit")


@OPERATIONS.add(
    "GET /api/v1/audit",
    "list_audit_entries",
    "List audit entries",
    Answer("A page of entries.", AuditList, headers=NEXT_PAGE),
    query=(
        *parameters_of(AuditFilters),
        Parameter(
            "since_seconds", "Only entries of the last N seconds, by this member's clock.", type=SinceSeconds
        ),
        _LIMIT,
        Parameter("cursor", "`next_cursor` of the previous page.", type=AuditCursor),
    ),
)
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
    entries = [shown(AuditEntryBody, entry, target=entry.object) for entry in page.entries]
    filters["since_seconds"] = str(since_seconds or "")
    return page_response(request, AuditList, entries, page.next_cursor, filters)


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
