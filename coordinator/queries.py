"""Every question about the replicated state, as data; `coordinator/machine` answers them from the database.

Permission is checked where the answer is made: a query carries its caller, and is refused like a command.
"""

from typing import Annotated

from msgspec import Meta, Struct

from coordinator.bounds import Count, Ids, Text
from coordinator.records import Caller

LIST_LIMIT_MAX = 1000
PageLimit = Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)]


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

    token_id: Text
    secret_sha256: Text
    node_id: Text
    public_key_sha256: Text
    proved_serial: Text = ""


class CheckJoinSecret(Query, frozen=True, kw_only=True, tag="check_join_secret"):
    """None if the token exists and this is the digest of its secret, unauthorized otherwise."""

    token_id: Text
    secret_sha256: Text


class ListJoinTokens(Query, frozen=True, kw_only=True, tag="list_join_tokens"):
    """Admin only: a JoinTokenPage after `cursor`, oldest first."""

    caller: Caller
    limit: PageLimit = LIST_LIMIT_MAX
    cursor: Count = 0


class ListNodes(Query, frozen=True, kw_only=True, tag="list_nodes"):
    """Admin only: a list of NodeRecord by id."""

    caller: Caller


class GetProjectFile(Query, frozen=True, kw_only=True, tag="get_project_file"):
    """Needs read: the ProjectFileRecord."""

    caller: Caller
    file_uuid: Text


class ListProjectFiles(Query, frozen=True, kw_only=True, tag="list_project_files"):
    """A ProjectFilePage: what the caller owns, for admins all; `project_id` "" means any; after `cursor`."""

    caller: Caller
    project_id: Text = ""
    limit: PageLimit = LIST_LIMIT_MAX
    cursor: Count = 0


class GetUpload(Query, frozen=True, kw_only=True, tag="get_upload"):
    """Needs write: the UploadRecord. gone when it has expired."""

    caller: Caller
    file_uuid: Text


class GetContent(Query, frozen=True, kw_only=True, tag="get_content"):
    """Needs read: the ContentRecord. not_available before the upload ends, gone when tombstoned."""

    caller: Caller
    file_uuid: Text


class FindBlob(Query, frozen=True, kw_only=True, tag="find_blob"):
    """For members only: the BlobRecord, or None when no file refers to such content."""

    sha256: Text


class LiveUploads(Query, frozen=True, kw_only=True, tag="live_uploads"):
    """For members only: which of these files still have an upload that has not ended (a list of ids)."""

    file_uuids: Ids


AnyQuery = (
    GetView
    | GetUser
    | CheckAdmin
    | CheckJoinSecret
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
