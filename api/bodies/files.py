"""Bodies of files of every kind: the fields that all kinds have, and tickets."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies.fields import (
    Amount,
    BlobSha256,
    BucketId,
    ContentType,
    Count,
    CreatedAt,
    ExpiresAt,
    Filename,
    FileStatus,
    FileUuid,
    FilterText,
    FolderPath,
    GivenBucketId,
    GivenSha256,
    GivenSizeBytes,
    KindOfFile,
    MaybeLabel,
    MaybeTimestamp,
    MemberId,
    NewFolderPath,
    NewProtectDays,
    NewRetentionHours,
    OwnerId,
    ProtectedUntil,
    Request,
    RetentionHours,
    ShownRetentionHours,
    SizeBytes,
    Timestamp,
    UpdatedAt,
    UploadUrl,
)
from ca.usertoken import TICKET_TTL_SECONDS_DEFAULT, TICKET_TTL_SECONDS_MAX, TICKET_TTL_SECONDS_MIN
from metadata.model.later_fields import Later
from metadata.model.records import BACKUP, DEFAULT_BUCKET_ID, PROJECT_FILE, VM, FileRecord

KIND_WORDS: Final[Mapping[str, str]] = {PROJECT_FILE: "project", VM: "image", BACKUP: "backup"}


class CreateFileBody(Request, frozen=True, kw_only=True):
    """The common fields of the creation of a file of any kind."""

    bucket_id: GivenBucketId = DEFAULT_BUCKET_ID
    content_type: ContentType = "application/octet-stream"
    filename: Filename
    retention_period: RetentionHours | None = None
    size_bytes: GivenSizeBytes | None = None
    blob_sha256: GivenSha256 = ""
    path: FolderPath | UnsetType | None = UNSET
    protect_days: NewProtectDays | UnsetType | None = UNSET


class UpdateFileBody(Request, frozen=True, kw_only=True):
    """The common fields of the change of a file of any kind. Absent fields keep their values."""

    filename: Filename | None = None
    content_type: ContentType | None = None
    retention_period: NewRetentionHours | UnsetType | None = UNSET
    path: NewFolderPath | UnsetType | None = UNSET


class ListFilter(Struct, frozen=True, kw_only=True):
    """The filters of the lists of one kind, in addition to those of every list of files; "" for any."""


def _said(field: Later) -> Any:
    """The type of a later field of a kind, as the API says it."""
    said = Meta(description=field.meaning, examples=[field.example])
    return Annotated[{str: MaybeLabel, int: Amount, bool: bool}[type(field.example)], said]


def in_requests(field: Later) -> tuple[Any, ...]:
    """A later field of a kind in the body of a request: it may be left out."""
    return _said(field) | None, None


def in_answers(field: Later) -> tuple[Any, ...]:
    """A later field of a kind in an answer: a label is "" where it was not given."""
    return (_said(field), "") if field.is_label else (_said(field) | UnsetType, UNSET)


def in_filters(field: Later) -> tuple[Any, ...] | None:
    """A list is narrowed by labels."""
    if not field.is_label:
        return None
    return Annotated[FilterText, Meta(description=field.meaning, examples=[field.example])], ""


class UploadInitialisation(Struct, frozen=True, kw_only=True):
    """A file record was made; its bytes go to `upload_url` until `expires_at`."""

    file_uuid: FileUuid
    upload_url: UploadUrl
    expires_at: Annotated[
        MaybeTimestamp,
        Meta(
            description=(
                'When the upload expires. Every byte that arrives extends it. "" if the file is available.'
            )
        ),
    ]
    status: FileStatus


class FileBody(Struct, frozen=True, kw_only=True):
    """The common fields of the record of a file of any kind."""

    file_uuid: FileUuid
    bucket_id: BucketId
    owner_id: OwnerId
    filename: Filename
    content_type: ContentType
    size_bytes: SizeBytes
    blob_sha256: BlobSha256
    status: FileStatus
    retention_period: ShownRetentionHours | UnsetType = UNSET
    expires_at: ExpiresAt
    created_at: CreatedAt
    updated_at: UpdatedAt
    path: FolderPath = ""
    protected_until: ProtectedUntil = ""


class FileSummary(Struct, frozen=True, kw_only=True):
    """An element of a bucket's listing, for files of any kind."""

    file_uuid: FileUuid
    owner_id: OwnerId | UnsetType = UNSET
    filename: Filename
    content_type: ContentType
    size_bytes: SizeBytes
    blob_sha256: BlobSha256
    status: FileStatus
    expires_at: ExpiresAt
    created_at: CreatedAt
    kind: KindOfFile | UnsetType = UNSET
    path: FolderPath = ""
    protected_until: ProtectedUntil = ""


def kind_of(record: FileRecord) -> str | UnsetType:
    """The kind as the API says it; until 0.3.0: absent where a coordinator of 0.1.0 does not."""
    return UNSET if record.kind is UNSET else KIND_WORDS[record.kind]


class FileReplicas(Struct, frozen=True, kw_only=True):
    """The nodes that hold the content of a file."""

    file_uuid: FileUuid
    blob_sha256: BlobSha256
    count: Count
    nodes: Annotated[
        list[MemberId],
        Meta(
            description="Nodes that hold a replica of the content, according to the log.",
            examples=[["n1", "n2", "n3"]],
        ),
    ]


class DeletedFile(Struct, frozen=True, kw_only=True):
    """The file is deleted; `status` is `deleted`. It can be restored while it is in the trash."""

    file_uuid: FileUuid
    status: FileStatus = "deleted"


class CreateTicketBody(Request, frozen=True, kw_only=True):
    """How long the ticket lives."""

    ttl_seconds: Annotated[
        int,
        Meta(
            ge=TICKET_TTL_SECONDS_MIN,
            le=TICKET_TTL_SECONDS_MAX,
            description=f"{TICKET_TTL_SECONDS_MIN}..{TICKET_TTL_SECONDS_MAX}. If absent: five minutes.",
            examples=[TICKET_TTL_SECONDS_DEFAULT],
        ),
    ] = TICKET_TTL_SECONDS_DEFAULT


class TicketBody(Struct, frozen=True, kw_only=True):
    """A ticket, shown once. Anyone who has its address can read the file until it expires."""

    url: Annotated[
        str,
        Meta(
            description=(
                "Address of the content, for GET and HEAD without a credential. Every node accepts it."
            ),
            examples=["https://10.0.0.1:7443/api/v1/tickets/eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2ln"],
            extra_json_schema={"format": "uri"},
        ),
    ]
    expires_at: Annotated[Timestamp, Meta(description="When the ticket expires.")]
