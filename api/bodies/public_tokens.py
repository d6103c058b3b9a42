"""Bodies of public tokens: links to a file that need no credential."""

from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    BucketId,
    Count,
    CreatedAt,
    Deleted,
    Filename,
    FileUuid,
    GivenTimestamp,
    GivenUuid,
    KindOfFile,
    NextCursor,
    Request,
    Timestamp,
    TtlSeconds,
    UserId,
    Uuid,
)
from metadata.model.records import DEFAULT_BUCKET_ID

_EXAMPLE: Final = "q1nJ0mYJm3a1Wc5rJH0b1rT0jJ8v0wC3c2tq0b0r1bI"
PublicTokenId = Annotated[Uuid, Meta(description="The id of the public token. It is not secret.")]
EndsAt = Annotated[Timestamp, Meta(description="When the link expires.")]


class CreatePublicTokenBody(Request, frozen=True, kw_only=True):
    """A public token to be made. Ids that are sent must be those of the file in the path."""

    bucket_uuid: Annotated[GivenUuid, Meta(description="The file's bucket. Optional, but it must match.")] = (
        ""
    )
    expires_at: Annotated[
        GivenTimestamp,
        Meta(description="When the link expires: an RFC 3339 time within 30 days. If absent: in 24 hours."),
    ] = ""
    ttl_seconds: TtlSeconds | None = None
    file_uuid: Annotated[GivenUuid, Meta(description="The file. Optional, but it must match the path.")] = ""


class PublicTokenBody(Struct, frozen=True, kw_only=True):
    """A public token, shown once."""

    token: Annotated[
        str,
        Meta(
            description="256 random bits. Anyone who has the token can read the file.",
            examples=[_EXAMPLE],
            extra_json_schema={"pattern": "^[A-Za-z0-9_-]{43}$"},
        ),
    ]
    url: Annotated[
        str,
        Meta(
            description="Address of the content, for GET and HEAD without a credential.",
            examples=[
                f"https://10.0.0.1:7443/api/v1/public/files/{DEFAULT_BUCKET_ID}/{_EXAMPLE}",
            ],
            extra_json_schema={"format": "uri"},
        ),
    ]
    file_uuid: FileUuid
    bucket_uuid: BucketId
    expires_at: EndsAt


class ListedPublicToken(Struct, frozen=True, kw_only=True):
    """A public token without its secret."""

    id: PublicTokenId
    file_uuid: FileUuid
    bucket_uuid: BucketId
    created_by: Annotated[
        UserId,
        Meta(
            description=(
                "The user who created it. It works only while this user has admin permission on the file."
            )
        ),
    ]
    created_at: CreatedAt
    expires_at: EndsAt
    status: Annotated[
        str,
        Meta(
            description="When the link expires. An expired or revoked link is answered with 410.",
            examples=["active"],
            extra_json_schema={"enum": ["active", "expired", "revoked"]},
        ),
    ]


class PublicTokenList(Struct, frozen=True, kw_only=True):
    """A page of public tokens, oldest first, ended ones too."""

    count: Count
    public_tokens: Annotated[list[ListedPublicToken], Meta(description="The public tokens.")]
    next_cursor: NextCursor | UnsetType = UNSET


class OwnPublicToken(ListedPublicToken, frozen=True, kw_only=True):
    """A public token without its secret, with the name of its file."""

    filename: Filename
    kind: KindOfFile


class OwnPublicTokenList(Struct, frozen=True, kw_only=True):
    """A page of public tokens, oldest first. It may be short of its limit and still have a next one."""

    count: Count
    public_tokens: Annotated[list[OwnPublicToken], Meta(description="The public tokens.")]
    next_cursor: NextCursor | UnsetType = UNSET


class RevokedPublicToken(Struct, frozen=True, kw_only=True):
    """The link is gone."""

    deleted: Deleted
    id: PublicTokenId
