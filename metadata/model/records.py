"""The records that queries and commands answer with.

Times are milliseconds since 1970; the API makes text of them.

Tested by tests/unit/coordinator/machine/test_buckets.py.
"""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from metadata.model.later_fields import in_the_log, with_later
from runtime.bounds import IMAGES_MAX, Count, Label, Parts, Pem, Span, Text, Token

DEFAULT_BUCKET_ID = "00000000-0000-0000-0000-000000000000"
ADMIN_ROLE, SERVICE_ROLE = "admin", "service"
PROJECT_FILE = "project_file"  # the kinds of file
VM = "vm"
BACKUP = "backup"
PARTIAL: Final = "partial"  # no kind: a partial upload, which is no file and becomes none
SCHEDULE = "schedule"  # the initiator of scheduled runs
VOTER = "voter"
LEARNER = "learner"
REMOVED = "removed"
HEALTHY: Final = "healthy"  # the states of a node that the log knows
DOWN: Final = "down"
RETURNING: Final = "returning"


class Caller(Struct, frozen=True, array_like=True):
    """The user who makes a request. `token` proves it: a coordinator verifies and removes it.

    The state machine checks `generation` and looks up the roles; the log and the database never see a token.
    """

    subject: Text
    generation: Count
    token: Token = ""

    def __repr__(self) -> str:
        return f"Caller({self.subject!r}, {self.generation})"

    def unsigned(self) -> "Caller":
        """Return this caller without the token."""
        return Caller(self.subject, self.generation)


class FileRecord(Struct, frozen=True, kw_only=True):
    """The common record of every stored file. `size_bytes` is 0 and `blob_sha256` "" until they are known.

    `retention_hours`: unset if the file is kept until it is deleted. `due_at_ms`: when an available file
    becomes tombstoned, or a tombstoned one is deleted; unset for never, and while unknown. `kind`: set only
    in lists of all kinds. `path`: its folder in the bucket, unset at the top.
    """

    file_uuid: str
    bucket_id: str
    owner_id: str
    filename: str
    content_type: str
    size_bytes: int
    blob_sha256: str
    status: str
    created_at_ms: int
    updated_at_ms: int
    retention_hours: int | UnsetType = UNSET
    due_at_ms: int | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    path: str | UnsetType = UNSET


@with_later(PROJECT_FILE, in_the_log)
class ProjectFileRecord(FileRecord, frozen=True, kw_only=True):
    """An exported network-emulation project, with the options that it was exported with."""

    project_id: str
    project_name: str
    version_tag: str
    compression: str
    include_images: bool
    include_snapshots: bool
    is_read_only: bool
    keep_compute_ids: bool
    reset_mac_addresses: bool


@with_later(VM, in_the_log)
class VmRecord(FileRecord, frozen=True, kw_only=True):
    """A virtual machine's disk image. `md5` is "" until its content is here."""

    virt_type: str
    format: str
    vcpus: int
    ram_mb: int
    extra_attributes_json: str
    md5: str


@with_later(BACKUP, in_the_log)
class BackupRecord(FileRecord, frozen=True, kw_only=True):
    """A backup. `parent_backup_uuid` is "" for a full one."""

    backup_type: str
    is_compressed: bool
    is_encrypted: bool
    parent_backup_uuid: str
    source_node_id: str


class ProjectFilePage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains. A page may be short of its limit: filters left much out."""

    files: list[ProjectFileRecord]
    next_cursor: int


class VmPage(Struct, frozen=True):
    """A page of VM images, like ProjectFilePage."""

    files: list[VmRecord]
    next_cursor: int


class BackupPage(Struct, frozen=True):
    """A page of backups, like ProjectFilePage."""

    files: list[BackupRecord]
    next_cursor: int


class FilePage(Struct, frozen=True):
    """A page of files of every kind, like ProjectFilePage."""

    files: list[FileRecord]
    next_cursor: int


class ManifestImage(Struct, frozen=True):
    """A disk image that a project needs; `md5` is "" where the archive does not say."""

    filename: Label
    md5: Label


class Manifest(Struct, frozen=True, kw_only=True):
    """The contents of the archive of a project, as far as it could be read.

    `archive`: `gns3` (a zip with a project in it), `damaged` (looks like one and cannot be read), `other`.
    `truncated`: only a part was examined, so the project may need more images than are listed, and `other`
    may be a project.
    """

    archive: Literal["gns3", "damaged", "other"]
    project_name: Label = ""
    format_version: Label = ""
    images: Annotated[list[ManifestImage], Meta(max_length=IMAGES_MAX)] = []
    truncated: bool = False


class UploadRecord(Struct, frozen=True, kw_only=True):
    """An upload as the log knows it. `placement` is empty once the file is available.

    The first of `placement` holds the upload, in this `epoch`. The first `offset_bytes` bytes are durable on
    the write quorum and hash to `prefix_sha256` ("" where there are none). `as_of`: the log
    index that this is true at; see CompleteUpload. `reserved_bytes`: of the bucket's quota; unset where it
    has none. `patch_offset`: as in CompleteUpload, of one that
    has ended. `parts`: of a final upload, the partial ones that its content is put together from, in order.
    """

    file_uuid: str
    status: str
    placement: list[str]
    size_bytes: int | None
    expected_sha256: str
    blob_sha256: str
    offset_bytes: int
    expires_at_ms: int
    kind: str = ""
    as_of: int = 0
    epoch: int = 0
    prefix_sha256: str = ""
    reserved_bytes: int | UnsetType = UNSET
    patch_offset: int | UnsetType = UNSET
    parts: Parts | UnsetType = UNSET


class UploadPart(Struct, frozen=True, kw_only=True):
    """A partial upload, with the fields of UploadRecord that are needed to assemble the final one."""

    file_uuid: str
    size_bytes: int | None
    placement: list[str]
    offset_bytes: int
    prefix_sha256: str

    @property
    def is_complete(self) -> bool:
        """Whether all of its bytes are durable on the write quorum."""
        return self.offset_bytes == self.size_bytes


class PlacedUpload(Struct, frozen=True, kw_only=True):
    """The fields of UploadRecord that are needed to place an upload on other nodes."""

    file_uuid: str
    kind: str
    placement: list[str]
    offset_bytes: int
    epoch: int
    prefix_sha256: str


class UploadPage(Struct, frozen=True, kw_only=True):
    """A page in the order of the file_uuid; `more`: there are further uploads."""

    uploads: list[PlacedUpload]
    more: bool


class ContentRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data that a download needs: the record, and the nodes that hold the bytes.

    `available_at_ms` says since when the bytes are there: content never changes once it is available.

    `is_lasting`: the caller may read it until a command changes that; no retention period and no expiry of a
    permission ends it. Set by GetContent only. `shared_by` and `link_ends_at_ms`: the user who made the link,
    and when it expires. Set by GetPublicContent only.
    """

    file: FileRecord
    replicas: list[str]
    available_at_ms: int = 0
    is_lasting: bool = False
    shared_by: str = ""
    link_ends_at_ms: int = 0


class BlobRecord(Struct, frozen=True, kw_only=True):
    """A blob and the nodes that hold it.

    `damaged`: nodes that keep a damaged copy. `gone`: bytes that are wrong in every copy, if no node has a
    complete one. `has_quorum`: enough nodes hold it to complete an upload.
    """

    sha256: str
    size_bytes: int
    reference_count: int
    replicas: list[str]
    damaged: list[str] = []
    gone: list[Span] = []
    has_quorum: bool = False


class UserRecord(Struct, frozen=True, kw_only=True):
    """A user as the log knows it."""

    user_id: str
    roles: list[str]
    groups: list[str]
    generation: int
    disabled: bool
    created_at_ms: int
    updated_at_ms: int


class UserPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    users: list[UserRecord]
    next_cursor: int


class BucketRecord(Struct, frozen=True, kw_only=True):
    """A bucket. `quota_bytes` 0 is none; `used_bytes` counts finished files, `file_count` all.

    `reserved_bytes`: what uploads under way have reserved of the quota; unset for nothing, as in
    UploadRecord.
    """

    bucket_id: str
    name: str
    owner_id: str
    quota_bytes: int
    used_bytes: int
    file_count: int
    created_at_ms: int
    updated_at_ms: int
    reserved_bytes: int | UnsetType = UNSET


class BucketPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    buckets: list[BucketRecord]
    next_cursor: int


class PermissionRecord(Struct, frozen=True, kw_only=True):
    """A permission on a bucket or file. `expires_at_ms` None never ends."""

    permission_id: str
    permission: str
    principal_type: str
    principal_id: str
    granted_by: str
    created_at_ms: int
    expires_at_ms: int | None


class PermissionPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    permissions: list[PermissionRecord]
    next_cursor: int


class PublicTokenRecord(Struct, frozen=True, kw_only=True):
    """A public token without its secret. `status`: active, expired or revoked, at the time of the answer."""

    token_id: str
    file_uuid: str
    bucket_id: str
    created_by: str
    created_at_ms: int
    expires_at_ms: int
    status: str


class PublicTokenPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    public_tokens: list[PublicTokenRecord]
    next_cursor: int


class JobRunRecord(Struct, frozen=True, kw_only=True):
    """One run of a job on the leader `node_id`. `status`: running, completed or failed; `result` is JSON.

    `completed_at_ms` is None while it runs; `invoked_by` is a user, or "schedule".
    """

    run_id: str
    job_name: str
    node_id: str
    invoked_by: str
    started_at_ms: int
    completed_at_ms: int | None
    status: str
    parameters: str
    result: str


class JobRunPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    runs: list[JobRunRecord]
    next_cursor: int


class NodeRecord(Struct, frozen=True, kw_only=True):
    """A filestore node that has joined. `peer_port` is 0 until it has run once.

    `draining`: nothing new is placed there. `state`: healthy, down or returning, as recorded by the leader.
    The replicas of a returning node count again once they were compared with the log. `instance`: the process
    that acts for it (`metadata.model.instance`); `revoked`: it has no live certificate.
    """

    node_id: str
    address: str
    api_port: int
    peer_port: int
    zone: str
    weight: int
    joined_at_ms: int
    draining: bool = False
    state: str = HEALTHY
    instance: str | UnsetType = UNSET
    revoked: bool | UnsetType = UNSET

    @property
    def speaker(self) -> str:
        """The instance that speaks for it, "" while that is not known."""
        return self.instance or ""

    @property
    def is_revoked(self) -> bool:
        """Whether its certificates are dead."""
        return self.revoked is True

    @property
    def takes_replicas(self) -> bool:
        """Whether a replica that is made there now counts."""
        return self.peer_port > 0 and not self.draining and self.state == HEALTHY


class CoordinatorRecord(Struct, frozen=True, kw_only=True):
    """A member of the Raft group. `role`: voter, or learner, which has no vote (dissertation, 4.2.1)."""

    coordinator_id: Text
    address: Text
    peer_port: Count
    api_port: Count
    role: Text = VOTER


class CertificateRecord(Struct, frozen=True, kw_only=True):
    """A leaf that the cluster signed; `pem` holds the leaf and its intermediate."""

    serial: Text
    pem: Pem
    public_key_sha256: Text
    not_before_ms: Count
    not_after_ms: Count


class JoinTokenRecord(Struct, frozen=True, kw_only=True):
    """A join token without its secret."""

    token_id: str
    node_id: str
    uses_max: int
    uses: int
    created_by: str
    created_at_ms: int
    expires_at_ms: int


class JoinTokenPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    join_tokens: list[JoinTokenRecord]
    next_cursor: int


class ClusterView(Struct, frozen=True, kw_only=True):
    """The facts that every node needs to serve: members, keys of user tokens, revoked certificates.

    `coordinators`: voters and learners. `removed_coordinators`: ids that were members once, and are dead.
    `token_key_ends`: of keys that were replaced, from when on they count for nothing. `node_serials`: by
    node, the certificates that are not revoked.
    """

    version: int
    cluster: str
    root_pem: str
    replicas: int
    write_quorum: int
    development: bool
    user_token_keys: list[dict[str, str]]
    coordinators: list[CoordinatorRecord]
    nodes: list[NodeRecord]
    revoked_serials: list[str]
    removed_coordinators: list[str] = []
    token_key_ends: dict[str, int] = {}
    node_serials: dict[str, list[str]] = {}


class TokenKeyRecord(Struct, frozen=True, kw_only=True):
    """The key that signs user tokens; `others_end_at_ms`: when those before it are of no use any more."""

    kid: str
    others_end_at_ms: int


class StateHash(Struct, frozen=True, kw_only=True):
    """The digest of a slice of the state at `log_index`: `rows` rows of `table`, in hexadecimal.

    Members that applied the same log have the same, except for their own memory. `touched`: the log has
    changed rows of the slice since they were last hashed; `tracked`: the member would know that. `position`:
    the start of the slice.
    """

    log_index: int
    table: str
    digest: str
    rows: int
    position: str = ""
    tracked: bool = False
    touched: bool = False


class HashReport(Struct, frozen=True, kw_only=True):
    """One coordinator's report of its digest at `log_index`. See ReportHash."""

    coordinator_id: str
    log_index: int
    digest: str
    origin: str = ""
    agreed_at: int = 0
    touched: bool = False
    odd: list[str] = []
    rebuilt_at_ms: int = 0
