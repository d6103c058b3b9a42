"""The records that queries and commands answer with.

Times are milliseconds since 1970; the API makes text of them.
"""

from msgspec import Struct

from coordinator.bounds import Count, Pem, Text, Token

DEFAULT_BUCKET_ID = "00000000-0000-0000-0000-000000000000"
ADMIN_ROLE = "admin"
VOTER = "voter"
LEARNER = "learner"
REMOVED = "removed"


class Caller(Struct, frozen=True, array_like=True):
    """Who asks. `token` is the user token that proves it: a coordinator verifies it and takes it away.

    The state machine checks `generation` and looks up the roles; the log and the database never see a token.
    """

    subject: Text
    generation: Count
    token: Token = ""

    def __repr__(self) -> str:
        return f"Caller({self.subject!r}, {self.generation})"

    def unsigned(self) -> "Caller":
        """The same without the token."""
        return Caller(self.subject, self.generation)


class FileRecord(Struct, frozen=True, kw_only=True):
    """What every stored file has in common. `size_bytes` is 0 and `blob_sha256` "" until they are known."""

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


class ProjectFilePage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    files: list[ProjectFileRecord]
    next_cursor: int


class UploadRecord(Struct, frozen=True, kw_only=True):
    """An upload as the log knows it. `placement` is empty once the file is available."""

    file_uuid: str
    status: str
    placement: list[str]
    size_bytes: int | None
    expected_sha256: str
    blob_sha256: str
    offset_bytes: int
    expires_at_ms: int


class ContentRecord(Struct, frozen=True, kw_only=True):
    """What a download needs: the record, and the nodes that hold the bytes."""

    file: FileRecord
    replicas: list[str]


class BlobRecord(Struct, frozen=True, kw_only=True):
    """A blob and the nodes that hold it."""

    sha256: str
    size_bytes: int
    reference_count: int
    replicas: list[str]


class UserRecord(Struct, frozen=True, kw_only=True):
    """A user as the log knows it."""

    user_id: str
    roles: list[str]
    groups: list[str]
    generation: int
    disabled: bool
    created_at_ms: int
    updated_at_ms: int


class NodeRecord(Struct, frozen=True, kw_only=True):
    """A filestore node that has joined. `peer_port` is 0 until it has run once."""

    node_id: str
    address: str
    api_port: int
    peer_port: int
    zone: str
    weight: int
    joined_at_ms: int


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
    """What every node must know to serve: members, the keys that sign user tokens, dead certificates.

    `coordinators`: voters and learners. `removed_coordinators`: ids that were members once, and are dead.
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


class StateHash(Struct, frozen=True, kw_only=True):
    """The digest of a slice of the state at `log_index`: `rows` rows of `table`, in hexadecimal.

    Members that applied the same log have the same.
    """

    log_index: int
    table: str
    digest: str
    rows: int


class HashReport(Struct, frozen=True, kw_only=True):
    """What one coordinator says that its digest at `log_index` is."""

    coordinator_id: str
    log_index: int
    digest: str
