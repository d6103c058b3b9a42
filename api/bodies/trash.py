"""Bodies of `/api/v1/trash`, and of the protection of a file."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    BlobSha256,
    BucketId,
    Count,
    Filename,
    FileUuid,
    FolderPath,
    KindOfFile,
    MaybeTimestamp,
    MaybeUuid,
    NextCursor,
    OwnerId,
    ProtectDays,
    ProtectedUntil,
    Request,
    SizeBytes,
    Timestamp,
    UserId,
    Uuid,
)


class TrashedFileBody(Struct, frozen=True, kw_only=True):
    """A deleted file that can be restored."""

    file_uuid: FileUuid
    kind: KindOfFile
    bucket_id: BucketId
    owner_id: OwnerId
    filename: Filename
    path: FolderPath
    size_bytes: SizeBytes
    blob_sha256: BlobSha256
    parent_backup_uuid: Annotated[MaybeUuid, Meta(description='The backup that it builds on, or "".')]
    deleted_by: Annotated[UserId, Meta(description="The user who deleted it.")]
    deleted_at: Annotated[Timestamp, Meta(description="When it was deleted.")]
    expires_at: Annotated[
        Timestamp,
        Meta(
            description=(
                "When it is deleted for good. That may happen earlier if the disks are almost full, or if "
                "the trash has more bytes than the quota of the bucket."
            )
        ),
    ]


class TrashList(Struct, frozen=True, kw_only=True):
    """A page of deleted files, in the order of their deletion. A short page may still have a next page."""

    count: Count
    files: Annotated[list[TrashedFileBody], Meta(description="The files.")]
    next_cursor: NextCursor | UnsetType = UNSET


class RestoredFileBody(Struct, frozen=True, kw_only=True):
    """A file that was restored."""

    file_uuid: FileUuid
    kind: KindOfFile
    bucket_id: BucketId
    parents: Annotated[
        list[Uuid],
        Meta(
            description="Backups that it builds on, and that were restored with it.",
            examples=[["019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"]],
        ),
    ]


class PurgedFile(Struct, frozen=True, kw_only=True):
    """The file is deleted for good."""

    file_uuid: FileUuid
    deleted: Annotated[bool, Meta(description="true", examples=[True])]


class ProtectBody(Request, frozen=True, kw_only=True):
    """How long the file is protected: until a time, or for some days from now."""

    protected_until: Annotated[
        MaybeTimestamp, Meta(description="The file cannot be deleted before this time.")
    ] = ""
    protect_days: ProtectDays | None = None


class ProtectedFile(Struct, frozen=True, kw_only=True):
    """A protected file."""

    file_uuid: FileUuid
    protected_until: ProtectedUntil
