"""Bodies of tickets: short-lived addresses of one file that need no header."""

from typing import Annotated

from msgspec import Meta, Struct

from api.bodies.fields import Request, Timestamp
from ca.usertoken import TICKET_TTL_SECONDS_DEFAULT, TICKET_TTL_SECONDS_MAX, TICKET_TTL_SECONDS_MIN


class CreateTicketBody(Request, frozen=True, kw_only=True):
    """How long the ticket lives."""

    ttl_seconds: Annotated[
        int,
        Meta(
            ge=TICKET_TTL_SECONDS_MIN,
            le=TICKET_TTL_SECONDS_MAX,
            description=f"{TICKET_TTL_SECONDS_MIN}..{TICKET_TTL_SECONDS_MAX}. Left out: five minutes.",
            examples=[TICKET_TTL_SECONDS_DEFAULT],
        ),
    ] = TICKET_TTL_SECONDS_DEFAULT


class TicketBody(Struct, frozen=True, kw_only=True):
    """A ticket, shown once. Whoever has its address can read the file until it ends."""

    url: Annotated[
        str,
        Meta(
            description="Where the content is, for GET and HEAD without a credential. Every node takes it.",
            examples=["https://10.0.0.1:7443/api/v1/tickets/eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2ln"],
            extra_json_schema={"format": "uri"},
        ),
    ]
    expires_at: Annotated[Timestamp, Meta(description="When the ticket ends.")]
