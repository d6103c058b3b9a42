"""Bodies of `/api/v1/backups`. Apart from `files`, which has what the bodies of all kinds share."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.checks import Checks, check_label, check_uuid
from api.bodies.fields import Count, GivenUuid, MaybeLabel, MaybeUuid, NextCursor
from api.bodies.files import (
    CreateFileBody,
    FileBody,
    ListFilter,
    UpdateFileBody,
    in_answers,
    in_filters,
    in_requests,
)
from metadata.model.later_fields import with_later
from metadata.model.records import BACKUP

_BACKUP_TYPE = "`full`, or `incremental`, which needs a parent."
GivenBackupType = Annotated[Literal["full", "incremental"], Meta(description=_BACKUP_TYPE, examples=["full"])]
BackupType = Annotated[
    str,
    Meta(description=_BACKUP_TYPE, examples=["full"], extra_json_schema={"enum": ["full", "incremental"]}),
]
IsCompressed = Annotated[bool, Meta(description="Whether the content is compressed.", examples=[True])]
IsEncrypted = Annotated[
    bool,
    Meta(description="Whether the program that made the backup has encrypted the content.", examples=[False]),
]
GivenParent = Annotated[
    GivenUuid,
    Meta(
        description="The backup that an incremental backup is based on. The caller must be able to read it."
    ),
]
SourceNodeId = Annotated[
    MaybeLabel, Meta(description='Where the backup was made: any label, or "".', examples=["gns3-server-1"])
]
CHECKS: Final[Checks] = {"parent_backup_uuid": check_uuid, "source_node_id": check_label}


@with_later(BACKUP, in_requests)
class CreateBackupBody(CreateFileBody, frozen=True, kw_only=True):
    """A backup to be made. `bucket_id` left out: the default bucket."""

    backup_type: GivenBackupType
    is_compressed: IsCompressed = False
    is_encrypted: IsEncrypted = False
    parent_backup_uuid: GivenParent | None = None
    source_node_id: SourceNodeId = ""


@with_later(BACKUP, in_requests)
class UpdateBackupBody(UpdateFileBody, frozen=True, kw_only=True):
    """Absent fields keep their values. A change to `full` removes the parent."""

    backup_type: GivenBackupType | None = None
    is_compressed: IsCompressed | None = None
    is_encrypted: IsEncrypted | None = None
    parent_backup_uuid: GivenParent | None = None
    source_node_id: SourceNodeId | None = None


@with_later(BACKUP, in_answers)
class BackupBody(FileBody, frozen=True, kw_only=True):
    """A backup: file record and backup metadata in one."""

    backup_type: BackupType
    is_compressed: IsCompressed
    is_encrypted: IsEncrypted
    parent_backup_uuid: Annotated[
        MaybeUuid, Meta(description='The backup that this one is based on, or "" for a full backup.')
    ]
    source_node_id: SourceNodeId


class BackupList(Struct, frozen=True, kw_only=True):
    """A page of backups, oldest first. It may be short of its limit and still have a next one."""

    count: Count
    backups: Annotated[list[BackupBody], Meta(description="The backups.")]
    next_cursor: NextCursor | UnsetType = UNSET


@with_later(BACKUP, in_filters)
class BackupFilter(ListFilter, frozen=True, kw_only=True):
    """Filters for a list of backups."""
