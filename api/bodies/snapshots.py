"""Bodies of `/api/v1/cluster/snapshots`."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    Amount,
    BlobSha256,
    BucketId,
    Count,
    CreatedAt,
    Filename,
    FileUuid,
    FolderPath,
    GivenUuid,
    KindOfFile,
    MaybeUuid,
    MemberId,
    NextCursor,
    OwnerId,
    Request,
    SizeBytes,
    Text,
    Timestamp,
)
from metadata.model.snapshot_records import HOLDS

SnapshotId = Annotated[str, Meta(description="The snapshot.", examples=["20261120T030000-48211"])]


class SnapshotBody(Struct, frozen=True, kw_only=True):
    """A snapshot of the metadata."""

    snapshot_id: SnapshotId
    coordinator_id: Annotated[
        MemberId, Meta(description="The coordinator with the file, in backups/ of its directory.")
    ]
    log_index: Annotated[Amount, Meta(description="The last entry of the log in it.", examples=[48_211])]
    taken_at: Annotated[Timestamp, Meta(description="The time of the snapshot.")]
    hold: Annotated[
        str,
        Meta(
            description=(
                "held while the content of its files stays on the disks; expired when that time is over; "
                "evicted if it ended early, as the disks were almost full."
            ),
            examples=["held"],
            extra_json_schema={"enum": [*HOLDS]},
        ),
    ]
    held_until: Annotated[Timestamp, Meta(description="Until when the content of its files stays.")]
    size_bytes: Annotated[Amount, Meta(description="Size of the snapshot in bytes.", examples=[8_192_000])]
    files: Annotated[Amount, Meta(description="Number of files in it.", examples=[1200])]
    sent_to: Annotated[
        Text, Meta(description='The other place that has a copy, or "".', examples=["directory /mnt/s"])
    ]
    held_blobs: Annotated[
        Amount, Meta(description="Contents of deleted files that leave the disks after it.", examples=[40])
    ]
    held_bytes: Annotated[
        Annotated[int, Meta(ge=0)], Meta(description="Their total size, each once.", examples=[12_000_000])
    ]
    is_readable: Annotated[
        bool,
        Meta(description="Whether the coordinator is a member. If not, single files cannot be restored."),
    ]


class SnapshotList(Struct, frozen=True, kw_only=True):
    """A page of snapshots, oldest first."""

    count: Count
    snapshots: Annotated[list[SnapshotBody], Meta(description="The snapshots.")]
    next_cursor: NextCursor | UnsetType = UNSET


class SnapshotFileBody(Struct, frozen=True, kw_only=True):
    """A file as a snapshot has it."""

    file_uuid: FileUuid
    kind: KindOfFile
    bucket_id: BucketId
    bucket_name: Annotated[str, Meta(description="The name of the bucket then.", examples=["labs"])]
    owner_id: OwnerId
    filename: Filename
    path: FolderPath
    size_bytes: SizeBytes
    blob_sha256: BlobSha256
    parent_backup_uuid: Annotated[MaybeUuid, Meta(description='The backup that it builds on, or "".')]
    created_at: CreatedAt


class SnapshotFileList(Struct, frozen=True, kw_only=True):
    """A page of files, in the order of their creation."""

    count: Count
    files: Annotated[list[SnapshotFileBody], Meta(description="The files.")]
    next_cursor: NextCursor | UnsetType = UNSET


class ReviveBody(Request, frozen=True, kw_only=True):
    """Changes of the record that comes back. An absent field keeps its value."""

    bucket_id: Annotated[GivenUuid, Meta(description="Another bucket for the file.")] = ""
    parent_backup_uuid: Annotated[
        GivenUuid, Meta(description="The file that has come back of the backup that it builds on.")
    ] = ""


class RevivedFileBody(Struct, frozen=True, kw_only=True):
    """A file that came back from a snapshot, as a new file."""

    file_uuid: FileUuid
    kind: KindOfFile
    bucket_id: BucketId
    owner_id: OwnerId
