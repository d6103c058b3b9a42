"""Bodies of the permissions on buckets and files."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    Count,
    CreatedAt,
    Deleted,
    GivenTimestamp,
    MaybeTimestamp,
    MaybeUuid,
    NextCursor,
    PermissionLevel,
    PrincipalKind,
    Request,
    TtlSeconds,
    UserId,
    Uuid,
)

PermissionId = Annotated[Uuid, Meta(description="The permission entry.")]
PrincipalId = Annotated[
    UserId, Meta(description="The user, group or role that receives the permission.", examples=["alice"])
]


class GrantBody(Request, frozen=True, kw_only=True):
    """A permission to be given. The same again only changes when it ends."""

    permission: PermissionLevel
    principal_id: PrincipalId
    principal_type: PrincipalKind
    expires_at: Annotated[
        GivenTimestamp,
        Meta(description="When the permission expires: an RFC 3339 time in the future. If absent: never."),
    ] = ""
    ttl_seconds: TtlSeconds | None = None


class PermissionBody(Struct, frozen=True, kw_only=True):
    """A permission entry."""

    id: PermissionId
    permission: Annotated[
        str,
        Meta(
            description="admin implies write, write implies read.",
            examples=["write"],
            extra_json_schema={"enum": ["read", "write", "admin"]},
        ),
    ]
    principal_id: PrincipalId
    principal_type: Annotated[
        str,
        Meta(
            description="The kind of principal that has the permission.",
            examples=["user"],
            extra_json_schema={"enum": ["user", "group", "role"]},
        ),
    ]
    granted_by: Annotated[UserId, Meta(description="The user who granted it last.", examples=["admin"])]
    created_at: CreatedAt
    expires_at: Annotated[MaybeTimestamp, Meta(description='When the permission expires, or "" for never.')]


class PermissionList(Struct, frozen=True, kw_only=True):
    """A page of permissions, oldest first, expired ones too."""

    count: Count
    permissions: Annotated[list[PermissionBody], Meta(description="The permission entries.")]
    next_cursor: NextCursor | UnsetType = UNSET


class OwnPermissionBody(PermissionBody, frozen=True, kw_only=True):
    """A permission entry, with what it is on."""

    target: Annotated[
        str,
        Meta(
            description="Whether the permission is on a bucket or on a file.",
            examples=["file"],
            extra_json_schema={"enum": ["bucket", "file"]},
        ),
    ]
    bucket_id: Annotated[Uuid, Meta(description="The bucket, or the bucket of the file.")]
    file_uuid: Annotated[MaybeUuid, Meta(description='The file, or "" for a permission on a bucket.')]
    name: Annotated[str, Meta(description="The name of the bucket or of the file.", examples=["lab 7"])]
    kind: Annotated[
        str,
        Meta(
            description='The kind of the file, or "" for a permission on a bucket.',
            examples=["project"],
            extra_json_schema={"enum": ["", "project", "image", "backup"]},
        ),
    ]


class OwnPermissionList(Struct, frozen=True, kw_only=True):
    """A page of permissions, oldest first. It may be short of its limit and still have a next one."""

    count: Count
    permissions: Annotated[list[OwnPermissionBody], Meta(description="The permission entries.")]
    next_cursor: NextCursor | UnsetType = UNSET


class WithdrawnPermission(Struct, frozen=True, kw_only=True):
    """The permission is gone."""

    deleted: Deleted
    id: PermissionId
