"""The bodies of the metadata API, as msgspec Structs in the field order of the interface, and their checks.

The OpenAPI document is made from them. An answer has every field, "" for text without a value. A request's
optional fields may be absent, null or "".
"""

import re
from typing import Annotated, Final, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from ca.errors import InvalidRequest, NotFound
from coordinator.records import DEFAULT_BUCKET_ID

SIZE_BYTES_MAX: Final = 2**53 - 1  # what a JSON number holds exactly everywhere
RETENTION_HOURS_MAX: Final = 876_000  # a hundred years
LABEL_CHARS_MAX: Final = 255

Compression = Literal["deflate", "bz2", "xz", "zstd", "none"]
Label = Annotated[str, Meta(min_length=1, max_length=LABEL_CHARS_MAX)]
SizeBytes = Annotated[int, Meta(ge=0, le=SIZE_BYTES_MAX)]
RetentionHours = Annotated[int, Meta(ge=0, le=RETENTION_HOURS_MAX)]

_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # C0, C1, and the line ends of Unicode
# RFC 9110, section 8.3.1, without quoted parameters' escapes: it goes back out in a header as it came.
_MEDIA_TYPE: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+.^_`|~-]+/[A-Za-z0-9!#$%&'*+.^_`|~-]+"
    r"(?:[ \t]*;[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+=(?:[A-Za-z0-9!#$%&'*+.^_`|~-]+|\"[ !#-\[\]-~]*\"))*"
)


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The root of request bodies."""


class CreateProjectFileBody(Request, frozen=True, kw_only=True):
    """POST /api/v1/project-files."""

    bucket_id: str = DEFAULT_BUCKET_ID
    compression: Compression = "none"
    content_type: Label = "application/octet-stream"
    filename: Label
    project_id: Label
    project_name: Label | None = None
    version_tag: Label | None = None
    include_images: bool = False
    include_snapshots: bool = False
    is_read_only: bool = False
    keep_compute_ids: bool = False
    reset_mac_addresses: bool = False
    retention_period: RetentionHours | None = None
    size_bytes: SizeBytes | None = None
    blob_sha256: str = ""


class UpdateProjectFileBody(Request, frozen=True, kw_only=True):
    """PATCH /api/v1/project-files/{file_uuid}: what is absent stays as it is."""

    compression: Compression | None = None
    include_images: bool | None = None
    include_snapshots: bool | None = None
    is_read_only: bool | None = None
    keep_compute_ids: bool | None = None
    project_name: Label | None = None
    reset_mac_addresses: bool | None = None
    version_tag: Label | None = None


class MintBody(Request, frozen=True, kw_only=True):
    """POST /api/v1/auth/users/{user_id}/token. Roles and groups given here become the user's."""

    ttl_seconds: int | None = None
    roles: list[str] | None = None
    groups: list[str] | None = None


class JoinBody(Request, frozen=True, kw_only=True):
    """POST /api/v1/cluster/join/filestore."""

    api_port: int
    csr: str
    id: str
    ip_address: str


class CreateJoinTokenBody(Request, frozen=True, kw_only=True):
    """POST /api/v1/cluster/join-tokens. Without `node_id`, the token admits any id."""

    ttl_seconds: Annotated[int, Meta(ge=60, le=86_400)] = 1800
    node_id: str = ""
    max_uses: Annotated[int, Meta(ge=1, le=1000)] = 1


class AddCoordinatorBody(Request, frozen=True, kw_only=True):
    """POST /api/v1/cluster/coordinators."""

    id: str
    address: str
    peer_port: int
    api_port: int


class TransferLeaderBody(Request, frozen=True, kw_only=True):
    """POST /api/v1/cluster/leader. Without `id`, the most advanced coordinator takes over."""

    id: str = ""


class UploadInitialisation(Struct, frozen=True, kw_only=True):
    """A file record was made; its bytes go to `upload_url` until `expires_at`."""

    file_uuid: str
    upload_url: str
    expires_at: str
    status: str


class ProjectFileBody(Struct, frozen=True, kw_only=True):
    """A project file: file record and project metadata in one."""

    file_uuid: str
    bucket_id: str
    owner_id: str
    filename: str
    content_type: str
    size_bytes: int
    blob_sha256: str
    status: str
    created_at: str
    updated_at: str
    project_id: str
    project_name: str
    version_tag: str
    compression: str
    include_images: bool
    include_snapshots: bool
    is_read_only: bool
    keep_compute_ids: bool
    reset_mac_addresses: bool


class ProjectFileList(Struct, frozen=True, kw_only=True):
    """A page of project files, oldest first. `next_cursor` is absent on the last page."""

    count: int
    project_files: list[ProjectFileBody]
    next_cursor: str | UnsetType = UNSET


class DeletedFile(Struct, frozen=True, kw_only=True):
    """The record is gone; `status` is `deleted`."""

    file_uuid: str
    status: str = "deleted"


class MintedToken(Struct, frozen=True, kw_only=True):
    """A user token, shown once."""

    token: str
    token_type: str
    user_id: str
    expires_at: str
    roles: list[str]
    groups: list[str]


class UserBody(Struct, frozen=True, kw_only=True):
    """A user as the cluster knows it."""

    user_id: str
    roles: list[str]
    groups: list[str]
    disabled: bool
    created_at: str
    updated_at: str


class JoinResult(Struct, frozen=True, kw_only=True):
    """PEM: the root bundle, and the node's leaf with its intermediate."""

    ca_cert: str
    node_cert: str


class CoordinatorAddress(Struct, frozen=True, kw_only=True):
    """Where a coordinator listens."""

    coordinator_id: str
    address: str
    peer_port: int
    api_port: int


class ClusterAuthority(Struct, frozen=True, kw_only=True):
    """GET /api/v1/cluster/ca: what a joiner compares with the digest in its token."""

    ca_cert: str
    cluster: str
    coordinators: list[CoordinatorAddress]


class KeySet(Struct, frozen=True, kw_only=True):
    """RFC 7517, section 5: the public keys of user tokens."""

    keys: list[dict[str, str]]


class NodeBody(Struct, frozen=True, kw_only=True):
    """A node that has joined."""

    id: str
    url: str
    address: str
    api_port: int
    peer_port: int
    zone: str
    weight: int
    joined_at: str


class NodeList(Struct, frozen=True, kw_only=True):
    """All nodes, by id."""

    count: int
    nodes: list[NodeBody]


class CoordinatorState(Struct, frozen=True, kw_only=True):
    """A coordinator as it sees itself; `match` to `active` as the leader sees it. What is not known is left
    out: what a coordinator with role `unreachable` would say, what a leader would say if there were one.

    `membership`: voter, or learner while it catches up. `match` is durable there, `lag` entries are missing;
    `replication`: probe, replicate, snapshot or leader. `diverged`: its state is known to be wrong.
    """

    id: str
    role: str
    membership: str
    term: int | UnsetType = UNSET
    commit: int | UnsetType = UNSET
    applied: int | UnsetType = UNSET
    last_index: int | UnsetType = UNSET
    disk_full: bool | UnsetType = UNSET
    match: int | UnsetType = UNSET
    lag: int | UnsetType = UNSET
    replication: str | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    diverged: bool = False


class CoordinatorBody(Struct, frozen=True, kw_only=True):
    """A coordinator that was added: a learner until it has caught up, then a voter."""

    id: str
    address: str
    peer_port: int
    api_port: int
    membership: str


class RemovedCoordinator(Struct, frozen=True, kw_only=True):
    """The coordinator is out of the group; its id is never used again."""

    deleted: bool
    id: str


class Leader(Struct, frozen=True, kw_only=True):
    """Who leads now."""

    leader: str


class NodeState(Struct, frozen=True, kw_only=True):
    """A node as the coordinators hear it: healthy, suspect, down, or joined (not heard yet)."""

    id: str
    url: str
    state: str
    heard_ms_ago: int
    free_bytes: int
    total_bytes: int
    uploads: int
    zone: str
    weight: int


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """Healthy: a leader is known, every coordinator answers, has room and the right state, and every node is
    healthy. `leader` may be "".
    """

    cluster: str
    leader: str
    healthy: bool
    coordinators: list[CoordinatorState]
    nodes: list[NodeState]
    files: int
    blobs: int
    blob_bytes: int


class JoinTokenBody(Struct, frozen=True, kw_only=True):
    """A join token without its secret."""

    token_id: str
    node_id: str
    max_uses: int
    uses: int
    created_by: str
    created_at: str
    expires_at: str


class JoinTokenList(Struct, frozen=True, kw_only=True):
    """A page of join tokens, oldest first. `next_cursor` is absent on the last page."""

    count: int
    join_tokens: list[JoinTokenBody]
    next_cursor: str | UnsetType = UNSET


class MintedJoinToken(Struct, frozen=True, kw_only=True):
    """A join token, shown once."""

    token_id: str
    token: str
    expires_at: str
    node_id: str
    max_uses: int


class DeletedJoinToken(Struct, frozen=True, kw_only=True):
    """The token admits nobody any more."""

    deleted: bool
    token_id: str


class Health(Struct, frozen=True, kw_only=True):
    """`ok`, `ready`, or `disk_full` of a coordinator that serves reads only."""

    status: str


def check_label(text: str, field: str) -> str:
    """A user's text, to be shown again: no control characters. Raises InvalidRequest naming `field`."""
    if _CONTROL.search(text):
        raise InvalidRequest(f"{field}: control characters are not allowed")
    return text


def check_filename(text: str) -> str:
    """A filename is a label, never a path. Raises InvalidRequest."""
    if "/" in text:
        raise InvalidRequest("filename: '/' is not allowed")
    return check_label(text, "filename")


def check_media_type(text: str) -> str:
    """A content type that may stand in a header. Raises InvalidRequest."""
    if _MEDIA_TYPE.fullmatch(text) is None:
        raise InvalidRequest("content_type: expected a media type such as application/zip")
    return text


def check_uuid(text: str, field: str) -> str:
    """A UUID in lower case. Raises InvalidRequest naming `field`."""
    if _UUID.fullmatch(text.lower()) is None:
        raise InvalidRequest(f"{field}: expected a UUID")
    return text.lower()


def check_sha256(text: str) -> str:
    """64 hex digits in lower case, or "". Raises InvalidRequest."""
    if text and _SHA256.fullmatch(text.lower()) is None:
        raise InvalidRequest("blob_sha256: expected 64 hex digits")
    return text.lower()


def path_uuid(request: web.Request, name: str = "file_uuid") -> str:
    """A UUID in the path. Raises NotFound: nothing has a malformed id."""
    text = request.match_info[name]
    if _UUID.fullmatch(text) is None:
        raise NotFound(f"No such {name.removesuffix('_uuid').replace('_', ' ')}.")
    return text
