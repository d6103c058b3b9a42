"""Every question about the replicated state, as data; `coordinator/machine` answers them from the database.

Permission is checked where the answer is made: a query carries its caller, and is refused like a command.
"""

from msgspec import Struct

from coordinator.records import Caller

LIST_LIMIT_MAX = 1000


class Query(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of all queries."""


class GetView(Query, frozen=True, kw_only=True, tag="get_view"):
    """For members only: the ClusterView."""


class GetUser(Query, frozen=True, kw_only=True, tag="get_user"):
    """The caller's own UserRecord."""

    caller: Caller


class CheckAdmin(Query, frozen=True, kw_only=True, tag="check_admin"):
    """The caller's UserRecord if it has the role admin, forbidden otherwise."""

    caller: Caller


class CheckJoinToken(Query, frozen=True, kw_only=True, tag="check_join_token"):
    """None if this token would admit this node now, unauthorized or conflict otherwise. JoinNode decides."""

    token_id: str
    secret_sha256: str
    node_id: str
    public_key_sha256: str
    proved_serial: str = ""


class ListJoinTokens(Query, frozen=True, kw_only=True, tag="list_join_tokens"):
    """Admin only: a list of JoinTokenRecord, oldest first."""

    caller: Caller


class ListNodes(Query, frozen=True, kw_only=True, tag="list_nodes"):
    """Admin only: a list of NodeRecord by id."""

    caller: Caller


class GetProjectFile(Query, frozen=True, kw_only=True, tag="get_project_file"):
    """Needs read: the ProjectFileRecord."""

    caller: Caller
    file_uuid: str


class ListProjectFiles(Query, frozen=True, kw_only=True, tag="list_project_files"):
    """A ProjectFilePage: what the caller owns, for admins all; `project_id` "" means any; after `cursor`."""

    caller: Caller
    project_id: str = ""
    limit: int = LIST_LIMIT_MAX
    cursor: int = 0


class GetUpload(Query, frozen=True, kw_only=True, tag="get_upload"):
    """Needs write: the UploadRecord. gone when it has expired."""

    caller: Caller
    file_uuid: str


class GetContent(Query, frozen=True, kw_only=True, tag="get_content"):
    """Needs read: the ContentRecord. not_available before the upload ends, gone when tombstoned."""

    caller: Caller
    file_uuid: str


class FindBlob(Query, frozen=True, kw_only=True, tag="find_blob"):
    """For members only: the BlobRecord, or None when no file refers to such content."""

    sha256: str


class LiveUploads(Query, frozen=True, kw_only=True, tag="live_uploads"):
    """For members only: which of these files still have an upload that has not ended (a list of ids)."""

    file_uuids: list[str]


AnyQuery = (
    GetView
    | GetUser
    | CheckAdmin
    | CheckJoinToken
    | ListJoinTokens
    | ListNodes
    | GetProjectFile
    | ListProjectFiles
    | GetUpload
    | GetContent
    | FindBlob
    | LiveUploads
)
