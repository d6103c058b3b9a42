"""Bodies of `/api/v1/buckets`."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    SIZE_BYTES_MAX,
    Amount,
    BucketId,
    Count,
    CreatedAt,
    Deleted,
    FileUuid,
    FolderCursor,
    FolderPath,
    Label,
    NextCursor,
    OwnerId,
    Request,
    Timestamp,
    UpdatedAt,
)
from api.bodies.files import FileSummary

BucketName = Annotated[
    Label, Meta(description="The name of the bucket, unique in the cluster.", examples=["course 7"])
]
QuotaBytes = Annotated[
    int,
    Meta(
        ge=0,
        le=SIZE_BYTES_MAX,
        description="Limit for the total size of the bucket's finished files in bytes; 0 means no limit.",
        examples=[1099511627776],
    ),
]


Storage = Annotated[
    Literal["auto", "hot", "cold"],
    Meta(
        description=(
            "How nodes store the content: `hot` as whole files, `cold` as compressed chunks that files "
            "share, `auto` cold after a time."
        ),
        examples=["auto"],
    ),
]


class CreateBucketBody(Request, frozen=True, kw_only=True):
    """A bucket to create. The caller becomes its owner."""

    name: BucketName
    quota_bytes: QuotaBytes = 0


class UpdateBucketBody(Request, frozen=True, kw_only=True):
    """Absent fields keep their values. A lower quota deletes nothing."""

    name: BucketName | None = None
    quota_bytes: QuotaBytes | None = None
    storage: Storage | None = None


class BucketBody(Struct, frozen=True, kw_only=True):
    """A bucket."""

    bucket_id: BucketId
    name: BucketName
    owner_id: OwnerId
    quota_bytes: QuotaBytes
    used_bytes: Annotated[Amount, Meta(description="Bytes of finished files.", examples=[1048576])]
    reserved_bytes: Annotated[
        Amount,
        Meta(description="Bytes of the quota that are reserved for unfinished uploads.", examples=[524288]),
    ] = 0
    storage: Storage = "auto"
    file_count: Annotated[Amount, Meta(description="Number of files, finished or not.", examples=[3])]
    created_at: CreatedAt
    updated_at: UpdatedAt


class BucketList(Struct, frozen=True, kw_only=True):
    """A page of buckets, oldest first. A page with fewer than `limit` entries may still have a next page."""

    count: Count
    buckets: Annotated[list[BucketBody], Meta(description="The buckets.")]
    next_cursor: NextCursor | UnsetType = UNSET


class BucketFileList(Struct, frozen=True, kw_only=True):
    """A page of a bucket's files, oldest first. A page below `limit` entries may still have a next page."""

    bucket_uuid: BucketId
    count: Count
    files: Annotated[list[FileSummary], Meta(description="The files, of every kind.")]
    next_cursor: NextCursor | UnsetType = UNSET


class FolderBody(Struct, frozen=True, kw_only=True):
    """A folder: it exists as long as a file is in it or in a folder below it."""

    name: Annotated[Label, Meta(description="Its name in the requested folder.", examples=["r1"])]
    path: FolderPath


class FolderList(Struct, frozen=True, kw_only=True):
    """A page of the folders in a folder, by name."""

    bucket_id: BucketId
    count: Count
    folders: Annotated[list[FolderBody], Meta(description="The folders.")]
    next_cursor: FolderCursor | UnsetType = UNSET


class BucketUploadBody(Struct, frozen=True, kw_only=True):
    """An unfinished upload: of a file, or a partial upload (tus concatenation)."""

    file_uuid: FileUuid
    kind: Annotated[
        str,
        Meta(
            description="The kind of file that is being uploaded, or `partial`.",
            examples=["partial"],
            extra_json_schema={"enum": ["project", "image", "backup", "partial"]},
        ),
    ]
    owner_id: OwnerId
    filename: Annotated[
        str,
        Meta(description='The name of the file, or "" for a partial upload.', examples=["lab.gns3project"]),
    ]
    size_bytes: (
        Annotated[
            Amount,
            Meta(
                description="The declared size. Absent until the client has declared it.", examples=[1048576]
            ),
        ]
        | UnsetType
    ) = UNSET
    offset_bytes: Annotated[Amount, Meta(description="Number of bytes received.", examples=[524288])]
    reserved_bytes: Annotated[
        Amount,
        Meta(
            description="Bytes of the bucket's quota that are reserved for this upload.", examples=[1048576]
        ),
    ]
    part_of: Annotated[
        str,
        Meta(
            description=('The `file_uuid` of the file that this partial upload has become a part of, or "".'),
            examples=[""],
        ),
    ]
    created_at: CreatedAt
    expires_at: Annotated[
        Timestamp,
        Meta(
            description="When the upload expires if no more bytes arrive.",
            examples=["2026-11-21T12:00:00.000Z"],
        ),
    ]


class BucketUploadList(Struct, frozen=True, kw_only=True):
    """A page of unfinished uploads, oldest first. A page below `limit` entries may still have a next page."""

    bucket_id: BucketId
    count: Count
    uploads: Annotated[list[BucketUploadBody], Meta(description="The uploads.")]
    next_cursor: NextCursor | UnsetType = UNSET


class DeletedBucket(Struct, frozen=True, kw_only=True):
    """The bucket is gone, and every permission on it."""

    deleted: Deleted
    bucket_id: BucketId
