"""Bodies of the sessions of users, and of the invitations with which they begin."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    Count,
    CreatedAt,
    Deleted,
    Groups,
    MaybeTimestamp,
    NextCursor,
    Request,
    Roles,
    Timestamp,
    UserId,
)
from api.bodies.users import GivenSessionLabel, SessionId, SessionLabel

INVITATION_TTL_SECONDS_DEFAULT = 7 * 86_400
INVITATION_TTL_SECONDS_MIN = 60
INVITATION_TTL_SECONDS_MAX = 30 * 86_400
SECRET_CHARS_MAX = 128  # of one that is given; those that are made have 43
_EXPIRES = Meta(description="When the link stops working.")


class SessionBody(Struct, frozen=True, kw_only=True):
    """A session of a user: a first token, and those that were renewed from it."""

    session_id: SessionId
    label: SessionLabel
    created_by: Annotated[UserId, Meta(description="Who made the first token.", examples=["admin"])]
    created_at: CreatedAt
    renewed_at: Annotated[Timestamp, Meta(description="When the newest token was made.")]
    expires_at: Annotated[Timestamp, Meta(description="When the last of the tokens expires.")]
    is_current: Annotated[
        bool, Meta(description="Whether the token of this request is of the session.", examples=[True])
    ]


class SessionList(Struct, frozen=True, kw_only=True):
    """A page of live sessions, oldest first. Tokens of releases before 0.2.0 are in none."""

    count: Count
    sessions: Annotated[list[SessionBody], Meta(description="The sessions.")]
    next_cursor: NextCursor | UnsetType = UNSET


class EndedSession(Struct, frozen=True, kw_only=True):
    """The tokens of the session are rejected from now on."""

    deleted: Deleted
    session_id: SessionId


class EndedSessions(Struct, frozen=True, kw_only=True):
    """All tokens of the user are rejected from now on."""

    deleted: Deleted
    user_id: UserId


class InviteBody(Request, frozen=True, kw_only=True):
    """A link for a user. Roles and groups given here become the user's."""

    ttl_seconds: Annotated[
        int,
        Meta(
            ge=INVITATION_TTL_SECONDS_MIN,
            le=INVITATION_TTL_SECONDS_MAX,
            description="How long the link works, in seconds. If absent: 7 days.",
            examples=[INVITATION_TTL_SECONDS_DEFAULT],
        ),
    ] = INVITATION_TTL_SECONDS_DEFAULT
    roles: Roles | None = None
    groups: Groups | None = None


class Invitation(Struct, frozen=True, kw_only=True):
    """A link with which a user gets a token, once. The secret is shown only in this response."""

    user_id: UserId
    url: Annotated[
        str,
        Meta(
            description="The page of the console that redeems it. The secret is behind the `#`.",
            examples=["https://files.example.org/console/#/invitation/(43 characters)"],
        ),
    ]
    token: Annotated[str, Meta(description="The secret of the link.", examples=["(43 characters)"])]
    expires_at: Annotated[Timestamp, _EXPIRES]


class InvitationBody(Struct, frozen=True, kw_only=True):
    """The newest invitation of a user, without its secret."""

    user_id: UserId
    created_by: Annotated[UserId, Meta(description="Who made it.", examples=["admin"])]
    created_at: CreatedAt
    expires_at: Annotated[Timestamp, _EXPIRES]
    used_at: Annotated[MaybeTimestamp, Meta(description='When it was used, or "".')]


class InvitationList(Struct, frozen=True, kw_only=True):
    """A page of invitations, oldest first, used and expired ones too."""

    count: Count
    invitations: Annotated[list[InvitationBody], Meta(description="The invitations.")]
    next_cursor: NextCursor | UnsetType = UNSET


class RevokedInvitation(Struct, frozen=True, kw_only=True):
    """The link does not work any more."""

    deleted: Deleted
    user_id: UserId


class RedeemBody(Request, frozen=True, kw_only=True):
    """The secret of an invitation."""

    token: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=SECRET_CHARS_MAX,
            description="The last part of the link.",
            examples=["(43 characters)"],
        ),
    ]
    label: GivenSessionLabel = ""
