"""Every question about the replicated state, as data; `coordinator/machine` answers them from the database.

Permission is checked where the answer is made: a query carries its caller, and is refused like a command.

Tested by tests/unit/coordinator/machine/test_lists.py.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Union

from msgspec import Meta, Struct

from metadata.model.later_fields import in_queries, with_later
from metadata.model.records import BACKUP, PROJECT_FILE, VM, Caller
from metadata.model.replica_records import HeldReplica, ReplicaPage
from metadata.protocol.commands.access import PrincipalType, Target
from metadata.protocol.commands.root import leaves
from runtime.bounds import Count, Ids, Label, Parts, Text

LIST_LIMIT_MAX = 1000
PageLimit = Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX)]


class Query(Struct, frozen=True, kw_only=True, tag_field="type"):
    """The root of all queries."""


class GetView(Query, frozen=True, kw_only=True, tag="get_view"):
    """For members only: the ClusterView."""


class ListQuery(Query, frozen=True, kw_only=True):
    """A page after `cursor`, in the order of creation."""

    caller: Caller
    limit: PageLimit = LIST_LIMIT_MAX
    cursor: Count = 0


class GetUser(Query, frozen=True, kw_only=True, tag="get_user"):
    """The caller's own UserRecord."""

    caller: Caller


class FindUser(Query, frozen=True, kw_only=True, tag="find_user"):
    """Admin only: the UserRecord of `user_id`; not_found when there is none."""

    caller: Caller
    user_id: Text


class CheckPrincipal(Query, frozen=True, kw_only=True, tag="check_principal"):
    """None if the user exists, or any user who has the group or role; not_found otherwise."""

    caller: Caller
    principal_type: PrincipalType
    principal_id: Text


class ListUsers(ListQuery, frozen=True, kw_only=True, tag="list_users"):
    """Admin only: a UserPage."""


class CheckAdmin(Query, frozen=True, kw_only=True, tag="check_admin"):
    """The caller's UserRecord if it has the role admin, forbidden otherwise."""

    caller: Caller


class CheckNewFile(Query, frozen=True, kw_only=True, tag="check_new_file"):
    """None if the caller may create a file of this size there now; else what its creation is refused with."""

    caller: Caller
    file_uuid: Text
    bucket_id: Text
    size_bytes: Count


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


class ListJoinTokens(ListQuery, frozen=True, kw_only=True, tag="list_join_tokens"):
    """Admin only: a JoinTokenPage."""


class ListNodes(Query, frozen=True, kw_only=True, tag="list_nodes"):
    """Admin only: a list of NodeRecord by id."""

    caller: Caller


class GetFileQuery(Query, frozen=True, kw_only=True):
    """Needs read: the record of a kind of file."""

    caller: Caller
    file_uuid: Text


class GetProjectFile(GetFileQuery, frozen=True, kw_only=True, tag="get_project_file"):
    """A ProjectFileRecord."""


class ListFilesQuery(ListQuery, frozen=True, kw_only=True):
    """The common filters of lists of files, applied after access control; "" for any.

    A page may have fewer elements than its limit, or none, and still have a next one: each examines a bounded
    number of files.
    """

    status: Text = ""
    filename_prefix: Label = ""
    without_prefix: Label = ""  # leave out files whose name begins with this


@with_later(PROJECT_FILE, in_queries)
class ListProjectFiles(ListFilesQuery, frozen=True, kw_only=True, tag="list_project_files"):
    """A ProjectFilePage: what the caller owns, for admins all."""

    project_id: Text = ""


class GetManifest(Query, frozen=True, kw_only=True, tag="get_manifest"):
    """Needs read: the Manifest of a project file; not_available before its upload ends."""

    caller: Caller
    file_uuid: Text


class GetVm(GetFileQuery, frozen=True, kw_only=True, tag="get_vm"):
    """A VmRecord."""


@with_later(VM, in_queries)
class ListVms(ListFilesQuery, frozen=True, kw_only=True, tag="list_vms"):
    """A VmPage: what the caller owns, for admins all; `md5` "" is any."""

    md5: Text = ""


class GetBackup(GetFileQuery, frozen=True, kw_only=True, tag="get_backup"):
    """A BackupRecord."""


@with_later(BACKUP, in_queries)
class ListBackups(ListFilesQuery, frozen=True, kw_only=True, tag="list_backups"):
    """A BackupPage: what the caller owns, for admins all."""


class GetBucket(Query, frozen=True, kw_only=True, tag="get_bucket"):
    """Needs read, but for the default bucket: the BucketRecord."""

    caller: Caller
    bucket_id: Text


class ListBuckets(ListQuery, frozen=True, kw_only=True, tag="list_buckets"):
    """A BucketPage: the default bucket and what the caller owns or was granted, for admins all."""


class BucketFilesQuery(ListFilesQuery, frozen=True, kw_only=True):
    """Needs read on the bucket: a FilePage. In the default bucket: what the caller owns or was granted."""

    bucket_id: Text


class ListBucketFiles(BucketFilesQuery, frozen=True, kw_only=True, tag="list_bucket_files"):
    """All files of a bucket."""


class ListFolderFiles(BucketFilesQuery, frozen=True, kw_only=True, tag="list_folder_files"):
    """The files in the folder `path`; `is_recursive`: and in the folders below it. `name`: only this name."""

    path: Text
    is_recursive: bool = False
    name: Text = ""


class ListFolders(Query, frozen=True, kw_only=True, tag="list_folders"):
    """Needs read on the bucket: a FolderPage of the folders in `path`, by name, those after `after`."""

    caller: Caller
    bucket_id: Text
    path: Text
    limit: PageLimit = LIST_LIMIT_MAX
    after: Text = ""


class ListBucketUploads(ListQuery, frozen=True, kw_only=True, tag="list_bucket_uploads"):
    """Needs read on the bucket: a BucketUploadPage, of all for its admins, of the caller's for others."""

    bucket_id: Text


class ListPermissions(ListQuery, frozen=True, kw_only=True, tag="list_permissions"):
    """Needs admin on the bucket or file: a PermissionPage, expired entries too."""

    target: Target
    target_id: Text


class ListPublicTokens(ListQuery, frozen=True, kw_only=True, tag="list_public_tokens"):
    """Needs admin on the file: a PublicTokenPage, ended ones too."""

    file_uuid: Text


class ListOwnPermissions(ListQuery, frozen=True, kw_only=True, tag="list_own_permissions"):
    """A GrantPage: permissions granted to the caller, by the caller, and on what it owns; all for admins.

    Permissions granted to it that have expired are omitted, and so are those that it granted on objects of
    which it is no longer admin. A page may have fewer elements than its limit, or none, and still have a next
    one.
    """


class ListOwnPublicTokens(ListQuery, frozen=True, kw_only=True, tag="list_own_public_tokens"):
    """A SharePage: public tokens that the caller made, or that are on files that it owns; for admins all.

    Needs admin on the file: others are left out. Ended ones are shown. A page may be short of its limit, or
    empty, and have a next one.
    """


class GetPublicContent(Query, frozen=True, kw_only=True, tag="get_public_content"):
    """The ContentRecord behind a public token, without a caller.

    not_found when the bucket has no such token; gone when it is expired or revoked, or when who made it has
    no admin permission on the file any more.
    """

    bucket_id: Text
    token_sha256: Text


class GetJobRun(Query, frozen=True, kw_only=True, tag="get_job_run"):
    """Admin only: the JobRunRecord."""

    caller: Caller
    run_id: Text


class ListJobRuns(ListQuery, frozen=True, kw_only=True, tag="list_job_runs"):
    """Admin only: a JobRunPage, oldest first; `job_name` "" is any."""

    job_name: Text = ""


class GetLastRuns(Query, frozen=True, kw_only=True, tag="get_last_runs"):
    """Admin only: a list of the newest JobRunRecord of each job that ever ran, by name."""

    caller: Caller


class GetUpload(Query, frozen=True, kw_only=True, tag="get_upload"):
    """Needs write: the UploadRecord. gone when it has expired."""

    caller: Caller
    file_uuid: Text


class GetParts(Query, frozen=True, kw_only=True, tag="get_parts"):
    """Partial uploads of the caller: a list of UploadPart, in this order. not_found unless all are its."""

    caller: Caller
    file_uuids: Parts


class GetTicketContent(Query, frozen=True, kw_only=True, tag="get_ticket_content"):
    """Like GetContent, for a ticket of `caller` to this file, which replaces the token."""

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


class ListNodeUploads(Query, frozen=True, kw_only=True, tag="list_node_uploads"):
    """For members only: an UploadPage of the uploads that are placed on a node and have not ended.

    They come after the file_uuid `after`.
    """

    node_id: Text
    after: Text = ""
    limit: PageLimit = LIST_LIMIT_MAX


class ListReplicasToDelete(Query, frozen=True, kw_only=True, tag="list_doomed"):
    """For members only: a DeletionPage, what a node shall delete, after the sha256 `after`."""

    node_id: Text
    after: Text = ""
    limit: PageLimit = LIST_LIMIT_MAX


class ListReplicas(Query, frozen=True, kw_only=True, tag="list_replicas"):
    """For members only: a ReplicaPage, what the log names a node for, after the sha256 `after`."""

    node_id: Text
    after: Text = ""
    limit: PageLimit = LIST_LIMIT_MAX


class KnownReplicas(Query, frozen=True, kw_only=True, tag="known_replicas"):
    """For members only: a list of KnownReplica, what the log says of these blobs on a node.

    Blobs that it does not know are left out.
    """

    node_id: Text
    sha256s: Ids


class ListShortBlobs(Query, frozen=True, kw_only=True, tag="list_short_blobs"):
    """For members only: a ShortPage, blobs with too few replicas that count, the most endangered first.

    The next page begins after the last blob of a page: its `missing` and sha256. `after_missing` 0 begins
    with blobs that no node holds; the number of wanted replicas begins with blobs that some node holds.
    `missing_min` skips blobs that cannot get more replicas, because the cluster has fewer nodes than replicas
    are wanted.
    """

    after_missing: Count = 0
    after_sha256: Text = ""
    missing_min: Count = 1
    limit: PageLimit = LIST_LIMIT_MAX


class ListSurplus(Query, frozen=True, kw_only=True, tag="list_surplus"):
    """For members only: a SurplusPage of blobs with more replicas than wanted.

    They are among the next `limit` blobs that files refer to, after the sha256 `after`.
    """

    after: Text = ""
    limit: PageLimit = LIST_LIMIT_MAX


class GetReplicaCounts(Query, frozen=True, kw_only=True, tag="get_replica_counts"):
    """For members only: the ReplicaCounts."""


class GetNodeReplicas(Query, frozen=True, kw_only=True, tag="get_node_replicas"):
    """For members only: the NodeReplicas of one node, zeros for one that is not there."""

    node_id: Text


class CountSoleReplicas(Query, frozen=True, kw_only=True, tag="count_sole_replicas"):
    """For members only: a SolePage of what a node holds and no node among `others` has.

    It counts what comes after the sha256 `after`.
    """

    node_id: Text
    others: list[Text]
    after: Text = ""
    limit: PageLimit = LIST_LIMIT_MAX


class ListDamagedBlobs(Query, frozen=True, kw_only=True, tag="list_damaged_blobs"):
    """For members only: a DamagedPage of blobs that no node holds whole, after the sha256 `after`.

    With `gone`: those with bytes that are wrong in every copy; otherwise: those without such bytes, as far as
    known.
    """

    gone: bool
    after: Text = ""
    limit: PageLimit = LIST_LIMIT_MAX


class ListDamagedCopies(Query, frozen=True, kw_only=True, tag="list_damaged_copies"):
    """For members only: the blobs with a damaged copy on this node.

    The answer is a list of sha256s, ascending, that come after the sha256 `after`.
    """

    node_id: Text
    after: Text = ""
    limit: PageLimit = LIST_LIMIT_MAX


class ListLastSources(Query, frozen=True, kw_only=True, tag="list_last_sources"):
    """For members only: DamagedBlobs with bytes that only this node has.

    They are the first by sha256, at most `limit`.
    """

    node_id: Text
    limit: PageLimit = LIST_LIMIT_MAX


class CountCollectable(Query, frozen=True, kw_only=True, tag="count_collectable"):
    """For members only: how many blobs a Collect with this grace would mark for deletion.

    They are counted up to `limit`. With `is_doomed` it is how many replicas were marked of those that a
    Collect would have by now, and are there still.
    """

    grace_ms: Count
    limit: Count
    is_doomed: bool = False


if TYPE_CHECKING:
    AnyQuery = Query
else:
    AnyQuery = Union[tuple(leaves(Query))]  # noqa: UP007  # as many as there are


async def held_pages(
    read: Callable[[ListReplicas], Awaitable[ReplicaPage]], node_id: str, *, rows: int, after: str = ""
) -> AsyncGenerator[list[HeldReplica], None]:
    """`rows` is what is read at once; a page may be empty. Begins behind `after`. Raises what `read` does."""
    more = True
    while more:
        page = await read(ListReplicas(node_id=node_id, after=after, limit=rows))
        yield [replica for replica in page.replicas if not replica.doomed]
        more = page.more
        after = page.replicas[-1].sha256 if page.replicas else after
