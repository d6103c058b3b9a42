"""Bodies of `/api/v1/audit`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import Count, FilterText, GivenTimestamp, Timestamp
from runtime.audit_pages import CURSOR
from runtime.bounds import LIFE_SECONDS_MAX

AuditCursor = Annotated[
    str,
    Meta(
        description="Send it as `cursor` to get the next page. Absent on the last page.",
        examples=["1795176000000-1048577-52113"],
        extra_json_schema={"pattern": f"^{CURSOR}$"},
    ),
]
Principal = Annotated[FilterText, Meta(description="Only actions of this user.", examples=["alice"])]
Action = Annotated[FilterText, Meta(description="Only actions with this name.", examples=["delete_file"])]
Target = Annotated[
    FilterText,
    Meta(
        description="Only actions on this target: a file's `file_uuid`, or another word of `target`.",
        examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"],
    ),
]
Since = Annotated[
    GivenTimestamp, Meta(description="Only entries from this time on. Any RFC 3339 time with a zone.")
]
Until = Annotated[
    GivenTimestamp, Meta(description="Only entries before this time. Any RFC 3339 time with a zone.")
]

SinceSeconds = Annotated[
    int,
    Meta(
        ge=1,
        le=LIFE_SECONDS_MAX,
        description=(
            "Only entries of the last N seconds, by this member's clock. Cannot be combined with `since`."
        ),
        examples=[86_400],
    ),
]


class AuditFilters(Struct, frozen=True, kw_only=True):
    """The filters of a list of audit entries; "" for any."""

    principal: Principal = ""
    target: Target = ""
    action: Action = ""
    since: Since = ""
    until: Until = ""


class AuditEntryBody(Struct, frozen=True, kw_only=True):
    """One audit entry: who did what to which object, with which result."""

    time: Annotated[Timestamp, Meta(description="When the action ended, by this member's clock.")]
    action: Annotated[
        str, Meta(description="The action that was done or attempted.", examples=["delete_file"])
    ]
    principal: Annotated[str, Meta(description="The user who did it, or `-` if unknown.", examples=["alice"])]
    target: Annotated[
        str,
        Meta(
            description="What the action was done to, as words that include ids.",
            examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"],
        ),
    ]
    outcome: Annotated[str, Meta(description="`ok`, or the code of the error.", examples=["ok"])]
    request_id: Annotated[
        str,
        Meta(
            description="The id of the request, as in the logs.",
            examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e60"],
        ),
    ]
    client_address: Annotated[
        str,
        Meta(
            description="The client's address, as reported by trusted proxies. Empty in entries of 0.1.0.",
            examples=["192.0.2.17"],
        ),
    ] = ""


class AuditList(Struct, frozen=True, kw_only=True):
    """A page of entries, newest first. It may be short of its limit and still have a next one."""

    count: Count
    entries: Annotated[list[AuditEntryBody], Meta(description="The entries.")]
    next_cursor: AuditCursor | UnsetType = UNSET
