"""Bodies of `/api/v1/auth` and of the keys that user tokens verify with."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    Count,
    CreatedAt,
    Deleted,
    Groups,
    MaybeLabel,
    NextCursor,
    Request,
    Roles,
    Timestamp,
    UpdatedAt,
    UserId,
)
from ca.usertoken import SERVICE_ROLE, SERVICE_TTL_SECONDS_MAX, TTL_SECONDS_DEFAULT, TTL_SECONDS_MAX

_LIFE = (
    f"Lifetime of the token in seconds, 1..{TTL_SECONDS_MAX}; for a user with the role {SERVICE_ROLE} "
    f"1..{SERVICE_TTL_SECONDS_MAX}, or less if the coordinators are configured so."
)
TtlSeconds = Annotated[
    int,
    Meta(
        description=f"{_LIFE} If absent: 12 hours.",
        examples=[TTL_SECONDS_DEFAULT],
        extra_json_schema={"minimum": 1, "maximum": SERVICE_TTL_SECONDS_MAX},
    ),
]

RenewedTtlSeconds = Annotated[
    TtlSeconds,
    Meta(
        description=f"{_LIFE} If absent: 30 days.",
        examples=[TTL_SECONDS_MAX],
    ),
]
SessionLabel = Annotated[
    MaybeLabel,
    Meta(description="What the session is of, for people.", examples=["console, Firefox on Linux"]),
]
GivenSessionLabel = Annotated[
    SessionLabel,
    Meta(description="What the token is for, for people: its user sees it in the list of sessions."),
]
SessionId = Annotated[
    str,
    Meta(
        description="The session: a first token, and those that were renewed from it. It is not secret.",
        examples=["019a3c5e-7b1f-7c22-9d0e-3f2a1b4c5d6e"],
    ),
]
Disabled = Annotated[
    bool,
    Meta(
        description="Whether the user is disabled: its tokens are rejected, and no new ones are minted.",
        examples=[False],
    ),
]


class MintBody(Request, frozen=True, kw_only=True):
    """Roles and groups given here become the user's."""

    ttl_seconds: TtlSeconds | None = None
    roles: Roles | None = None
    groups: Groups | None = None
    label: GivenSessionLabel = ""


class RenewTokenBody(Request, frozen=True, kw_only=True):
    """How long the new token lives."""

    ttl_seconds: RenewedTtlSeconds | None = None


class PutUserBody(Request, frozen=True, kw_only=True):
    """Absent fields keep their values. A new user has no roles and no groups."""

    roles: Roles | None = None
    groups: Groups | None = None
    disabled: Disabled | None = None


class RevokeBody(Request, frozen=True, kw_only=True):
    """Whose permissions and tokens end. It may be named by `?user_id=` instead."""

    user_id: UserId = ""


class RotateKeyBody(Request, frozen=True, kw_only=True):
    """How long tokens of the keys before are still taken."""

    grace_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=TTL_SECONDS_MAX,
            description=(
                "How long tokens of the previous keys stay valid, in seconds, "
                f"0..{TTL_SECONDS_MAX}. If absent: they are rejected at once."
            ),
            examples=[TTL_SECONDS_DEFAULT],
        ),
    ] = 0


class RotatedKey(Struct, frozen=True, kw_only=True):
    """The key that signs user tokens from now on."""

    kid: Annotated[
        str,
        Meta(
            description="The name of the key in `/.well-known/jwks.json` and in the tokens that it signs.",
            examples=["NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"],
        ),
    ]
    others_end_at: Annotated[
        Timestamp, Meta(description="When tokens of the previous keys start to be rejected.")
    ]


class MintedToken(Struct, frozen=True, kw_only=True):
    """A user token, shown once."""

    token: Annotated[
        str,
        Meta(
            description="A JWT. Send it as `Authorization: Bearer TOKEN`.",
            examples=["eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"],
        ),
    ]
    token_type: Annotated[
        str, Meta(description="Always Bearer.", examples=["Bearer"], extra_json_schema={"const": "Bearer"})
    ] = "Bearer"  # noqa: S105  # the kind of token, not one
    user_id: UserId
    expires_at: Annotated[Timestamp, Meta(description="When the token expires.")]
    roles: Roles
    groups: Groups


class UserBody(Struct, frozen=True, kw_only=True):
    """A user as the cluster knows it."""

    user_id: UserId
    roles: Roles
    groups: Groups
    disabled: Disabled
    created_at: CreatedAt
    updated_at: UpdatedAt


class CallerBody(UserBody, frozen=True, kw_only=True):
    """The caller, and how long it may go on with the token that it has shown."""

    token_expires_at: Annotated[
        Timestamp,
        Meta(
            description=(
                "When the token of this request expires, by its lifetime or because its key was replaced."
            )
        ),
    ]

    session_id: Annotated[SessionId, Meta(description="The session of the token of this request.")]


class UserList(Struct, frozen=True, kw_only=True):
    """A page of users, oldest first."""

    count: Count
    users: Annotated[list[UserBody], Meta(description="The users.")]
    next_cursor: NextCursor | UnsetType = UNSET


class DeletedUser(Struct, frozen=True, kw_only=True):
    """The user is gone: its tokens are dead, its permissions and public tokens have ended."""

    deleted: Deleted
    user_id: UserId


class KeySet(Struct, frozen=True, kw_only=True):
    """RFC 7517, section 5: the public keys of user tokens."""

    keys: Annotated[
        list[dict[str, str]],
        Meta(
            description="JSON Web Keys.",
            examples=[[{"kty": "EC", "crv": "P-256", "kid": "a1", "x": "(base64url)", "y": "(base64url)"}]],
        ),
    ]
