"""The responses of the API, as types. Fields that a newer server adds are ignored.

Times are RFC 3339 in UTC, "" for never; sizes are bytes; hashes are lower-case hexadecimal digits.
"""

from typing import Any, Literal

from msgspec import Struct

Kind = Literal["project", "image", "backup"]
Permission = Literal["read", "write", "admin"]
PrincipalType = Literal["user", "group", "role"]


class Record(Struct, frozen=True, kw_only=True):
    """A record of the API. `etag` is what `if_match` takes; "" in lists."""

    etag: str = ""


class FileRecord(Record, frozen=True, kw_only=True):
    """A file of any kind: what it is called, and what is in it once its `status` is `available`."""

    file_uuid: str
    bucket_id: str
    owner_id: str
    filename: str
    content_type: str
    size_bytes: int
    blob_sha256: str
    status: str
    expires_at: str
    created_at: str
    updated_at: str
    retention_period: int | None = None

    @property
    def kind(self) -> Kind:
        """Which kind of file it is."""
        raise NotImplementedError


class Project(FileRecord, frozen=True, kw_only=True):
    """A project export."""

    project_id: str
    project_name: str
    version_tag: str
    compression: str
    include_images: bool
    include_snapshots: bool
    is_read_only: bool
    keep_compute_ids: bool
    reset_mac_addresses: bool

    @property
    def kind(self) -> Kind:
        """Always `project`."""
        return "project"


class Image(FileRecord, frozen=True, kw_only=True):
    """A VM image. `md5` is that of its content."""

    virt_type: str
    format: str
    vcpus: int
    ram_mb: int
    extra_attributes_json: str
    md5: str

    @property
    def kind(self) -> Kind:
        """Always `image`."""
        return "image"


class Backup(FileRecord, frozen=True, kw_only=True):
    """A backup."""

    backup_type: str
    is_compressed: bool
    is_encrypted: bool
    parent_backup_uuid: str
    source_node_id: str

    @property
    def kind(self) -> Kind:
        """Always `backup`."""
        return "backup"


class FileSummary(Record, frozen=True, kw_only=True):
    """A file of any kind as the list of a bucket shows it."""

    file_uuid: str
    filename: str
    content_type: str
    size_bytes: int
    blob_sha256: str
    status: str
    expires_at: str
    created_at: str
    kind: str = ""  # of servers of older versions


class ManifestImage(Struct, frozen=True, kw_only=True):
    """An image that a project needs. `md5` is "" where the project does not say."""

    filename: str
    md5: str


class Manifest(Struct, frozen=True, kw_only=True):
    """The contents of the archive of a project. `truncated`: only a part of it was read."""

    file_uuid: str
    archive: str
    project_name: str
    format_version: str
    images: list[ManifestImage]
    truncated: bool


class Bucket(Record, frozen=True, kw_only=True):
    """A bucket. `quota_bytes` 0: no limit; `reserved_bytes` are those of uploads that have not ended."""

    bucket_id: str
    name: str
    owner_id: str
    quota_bytes: int
    used_bytes: int
    reserved_bytes: int
    file_count: int
    created_at: str
    updated_at: str


class BucketUpload(Struct, frozen=True, kw_only=True):
    """An unfinished upload. `kind` is `project`, `image`, `backup` or `partial`.

    `size_bytes` is None while it is not declared; `part_of` is the file that a partial upload is a part of.
    """

    file_uuid: str
    kind: str
    owner_id: str
    filename: str
    size_bytes: int | None = None
    offset_bytes: int
    reserved_bytes: int
    part_of: str
    created_at: str
    expires_at: str


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A permission that was given to a user or a group.

    Its object is only set in the list of the caller's own grants: `target` is `bucket` or `file`, `name` its
    name; `file_uuid` and `kind` are "" for a bucket.
    """

    id: str
    permission: str
    principal_id: str
    principal_type: str
    granted_by: str
    created_at: str
    expires_at: str
    target: str = ""
    bucket_id: str = ""
    file_uuid: str = ""
    name: str = ""
    kind: str = ""


class Share(Struct, frozen=True, kw_only=True):
    """A new public link: anyone who has `url` can read the file until the link expires."""

    token: str
    url: str
    file_uuid: str
    bucket_uuid: str
    expires_at: str


class ListedShare(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A public link in a list: its secret is not stored.

    `filename` and `kind` of its file are only set in the list of the caller's own links.
    """

    id: str
    file_uuid: str
    bucket_uuid: str
    created_by: str
    created_at: str
    expires_at: str
    status: str
    filename: str = ""
    kind: str = ""


class User(Struct, frozen=True, kw_only=True):
    """A user. `token_expires_at`: of the token that asked, in the answer of `whoami` only."""

    user_id: str
    roles: list[str]
    groups: list[str]
    disabled: bool
    created_at: str
    updated_at: str
    token_expires_at: str = ""


class MintedToken(Struct, frozen=True, kw_only=True):
    """A user token, shown this once."""

    token: str
    user_id: str
    expires_at: str
    roles: list[str]
    groups: list[str]

    def __repr__(self) -> str:
        return f"MintedToken(user_id={self.user_id!r}, expires_at={self.expires_at!r})"


class RotatedKey(Struct, frozen=True, kw_only=True):
    """The new key that signs tokens; those of the others end at `others_end_at`."""

    kid: str
    others_end_at: str


class JoinToken(Struct, frozen=True, kw_only=True):
    """A join token as it is listed, without its secret."""

    token_id: str
    node_id: str
    max_uses: int
    uses: int
    created_by: str
    created_at: str
    expires_at: str


class MintedJoinToken(Struct, frozen=True, kw_only=True):
    """A join token, shown this once."""

    token_id: str
    token: str
    expires_at: str
    node_id: str
    max_uses: int

    def __repr__(self) -> str:
        return f"MintedJoinToken(token_id={self.token_id!r}, expires_at={self.expires_at!r})"


class JobRun(Struct, frozen=True, kw_only=True):
    """One run of a job. `result` is what it says of itself, as JSON."""

    run_id: str
    job_name: str
    node_id: str
    invoked_by: str
    started_at: str
    completed_at: str
    status: str
    result: Any


class Job(Struct, frozen=True, kw_only=True):
    """A job, and its last run if there was one. `schedule_s` 0: only when it is asked for."""

    job_name: str
    description: str
    schedule_s: int
    last_run: JobRun | None = None


class TriggeredRun(Struct, frozen=True, kw_only=True):
    """A run that was asked for."""

    run_id: str
    job_name: str
    status: str


class Node(Struct, frozen=True, kw_only=True):
    """A node of the cluster."""

    id: str
    url: str
    address: str
    api_port: int
    peer_port: int
    zone: str
    weight: int
    joined_at: str
    draining: bool


class RevokedNode(Struct, frozen=True, kw_only=True):
    """The work that the revocation of a node leaves to repair, and content that is nowhere else."""

    id: str
    replicas: int
    uploads: int
    only_there: int
    uploads_only_there: list[str]


class RemovedNode(Struct, frozen=True, kw_only=True):
    """The content of a removed node."""

    id: str
    replicas: int
    uploads: int


class Coordinator(Struct, frozen=True, kw_only=True):
    """A coordinator of the group. `membership`: voter, learner and so on."""

    id: str
    address: str
    peer_port: int
    api_port: int
    membership: str


class AuditEntry(Struct, frozen=True, kw_only=True):
    """An action or a rejected attempt, as recorded by one member."""

    time: str
    principal: str
    action: str
    target: str
    outcome: str
    request_id: str
    client_address: str = ""  # from where it was asked; servers of older versions do not tell
    member: str = ""  # who has it on record; the client that asked knows


class Ticket(Struct, frozen=True, kw_only=True):
    """A short-lived address of one file, which needs no token."""

    url: str
    expires_at: str

    def __repr__(self) -> str:
        return f"Ticket(expires_at={self.expires_at!r})"


class Content(Struct, frozen=True, kw_only=True):
    """The stored content of a file: its size, checksum (sha256), name and type."""

    size_bytes: int
    sha256: str
    filename: str
    content_type: str = ""
