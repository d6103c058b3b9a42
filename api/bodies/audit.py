"""Bodies of `/api/v1/audit`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import Count, FilterText, GivenTimestamp, Timestamp
from runtime.audit_pages import CURSOR
from runtime.bounds import LIFE_SECONDS_MAX

AuditCursor = Annotated[
    str,
    Meta(
        description="Send it as `cursor` for the next page. Absent on the last one.",
        examples=["1795176000000-1048577-52113"],
        extra_json_schema={"pattern": f"^{CURSOR}$"},
    ),
]
Principal = Annotated[FilterText, Meta(description="Only what this user did.", examples=["alice"])]
Action = Annotated[FilterText, Meta(description="Only what is called so.", examples=["delete_file"])]
Target = Annotated[
    FilterText,
    Meta(
        description="Only what was done to this: a file's `file_uuid`, or another word of the `target`.",
        examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"],
    ),
]
Since = Annotated[GivenTimestamp, Meta(description="Only from this time on; any RFC 3339 time with a zone.")]
Until = Annotated[GivenTimestamp, Meta(description="Only before this time; any RFC 3339 time with a zone.")]

SinceSeconds = Annotated[
    int,
    Meta(
        ge=1,
        le=LIFE_SECONDS_MAX,
        description="Only entries of the last N seconds, by the clock of this member; not with `since`.",
        examples=[86_400],
    ),
]


class AuditFilters(Struct, frozen=True, kw_only=True):
    """What a list of audit entries can be narrowed by; "" is any."""

    principal: Principal = ""
    target: Target = ""
    action: Action = ""
    since: Since = ""
    until: Until = ""


class AuditEntryBody(Struct, frozen=True, kw_only=True):
    """Who did what to which object, and how it ended."""

    time: Annotated[Timestamp, Meta(description="When it ended, by the clock of this member.")]
    action: Annotated[str, Meta(description="What was done, or tried.", examples=["delete_file"])]
    principal: Annotated[str, Meta(description="Who did it; `-` where nobody knows.", examples=["alice"])]
    target: Annotated[
        str,
        Meta(
            description="What it was done to: words, with ids among them.",
            examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"],
        ),
    ]
    outcome: Annotated[str, Meta(description="`ok`, or the code of the error.", examples=["ok"])]
    request_id: Annotated[
        str,
        Meta(description="The request, as logs have it.", examples=["019398a1-7c20-7b3e-9d11-0a1b2c3d4e60"]),
    ]
    client_address: Annotated[
        str,
        Meta(
            description="From where it was asked, as trusted proxies tell; empty in entries of 0.1.0.",
            examples=["192.0.2.17"],
        ),
    ]


class AuditList(Struct, frozen=True, kw_only=True):
    """A page of entries, newest first. It may be short of its limit and still have a next one."""

    count: Count
    entries: Annotated[list[AuditEntryBody], Meta(description="The entries.")]
    next_cursor: AuditCursor | UnsetType = UNSET
