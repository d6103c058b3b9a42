"""The responses of the API, as types. Fields that a newer server adds are ignored.

Times are RFC 3339 in UTC, "" for never; sizes are bytes; hashes are lower-case hexadecimal digits.

Tested by tests/cluster/test_client_records.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from msgspec import Struct

Kind = Literal["project", "image", "backup"]
Permission = Literal["read", "write", "admin"]
PrincipalType = Literal["user", "group", "role"]


class Record(Struct, frozen=True, kw_only=True):
    """A record of the API. `etag` is what `if_match` takes; "" in lists."""

    etag: str = ""


class Secret(Struct, frozen=True, kw_only=True):
    """An answer with a secret, which is not shown when the record is printed."""

    def __repr__(self) -> str:
        shown = [
            name for name in self.__struct_fields__ if name not in ("token", "url", "attempt", "renewal")
        ]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Content(Struct, frozen=True, kw_only=True):
    """The stored content of a file: its size, checksum (sha256), name and type."""

    size_bytes: int
    sha256: str
    filename: str
    content_type: str = ""


# ---- written by `python -m release.client` from here on ----


class FileRecord(Record, frozen=True, kw_only=True):
    """The common fields of the record of a file of any kind."""

    file_uuid: str  # The file.
    bucket_id: str  # The bucket. The default bucket's id is all zeros.
    owner_id: str  # The user who owns the file or bucket and has admin permission on it.
    # A label for people and downloads, not a path: it contains no '/' and no control characters.
    filename: str
    content_type: str  # The media type of downloads (RFC 9110, section 8.3.1).
    size_bytes: int  # Size of the content in bytes; 0 if not known yet.
    blob_sha256: str  # SHA-256 of the content, or "" until the upload has ended.
    # pending until the first byte is durable; uploading until the content is complete; then available;
    # tombstoned after its retention period; finally deleted.
    status: str
    # Whole hours from the moment the file becomes available until it is tombstoned. Absent if it is
    # kept until it is deleted.
    retention_period: int | None = None
    # When the retention period ends and the content is removed. For a tombstoned file: when the record
    # is removed as well. "" for never, and until the file is available.
    expires_at: str
    created_at: str  # When the record was created.
    updated_at: str  # When the record last changed.
    # The folder of the file in its bucket, such as `lab 7/r1`; "" for the top of the bucket. It has at
    # most 64 parts, with '/' between them. Each is a name as `filename` is, and not `.` or `..`.
    path: str = ""
    protected_until: str = ""  # The file cannot be deleted before this time. "" if it is not protected.
    kind: ClassVar[Kind]


class Project(FileRecord, frozen=True, kw_only=True):
    """A project file: file record and project metadata in one."""

    project_id: str  # The project's id at its origin: any label.
    project_name: str  # The project's name, or "".
    version_tag: str  # The version's label, or "".
    compression: str  # The compression that was used for the export.
    include_images: bool  # Whether the export includes the disk images that it needs.
    include_snapshots: bool  # Whether the export includes the project's snapshots.
    is_read_only: bool  # Whether the project is meant to be opened but not changed.
    keep_compute_ids: bool  # Whether the export keeps the ids of the computes that it ran on.
    reset_mac_addresses: bool  # Whether an import gives every interface a new MAC address.
    message: str = ""  # What its owner says about this version.
    tag: str = ""  # A name of this version; `-` for none.
    kind: ClassVar[Kind] = "project"


class Image(FileRecord, frozen=True, kw_only=True):
    """A VM image: file record and image metadata in one."""

    virt_type: str  # What runs the image.
    format: str  # The disk format of the image, such as qcow2.
    vcpus: int  # Number of virtual processors.
    ram_mb: int  # Memory in MB.
    # A JSON object as text, at most 64 KiB, returned unchanged; "" if none was given.
    extra_attributes_json: str
    md5: str  # MD5 of the content, or "" if unknown.
    kind: ClassVar[Kind] = "image"


class Backup(FileRecord, frozen=True, kw_only=True):
    """A backup: file record and backup metadata in one."""

    backup_type: str  # `full`, or `incremental`, which needs a parent.
    is_compressed: bool  # Whether the content is compressed.
    is_encrypted: bool  # Whether the program that made the backup has encrypted the content.
    parent_backup_uuid: str  # The backup that this one is based on, or "" for a full backup.
    source_node_id: str  # Where the backup was made: any label, or "".
    kind: ClassVar[Kind] = "backup"


class FileSummary(Record, frozen=True, kw_only=True):
    """An element of a bucket's listing, for files of any kind."""

    file_uuid: str  # The file.
    owner_id: str = ""  # The user who owns the file or bucket and has admin permission on it.
    # A label for people and downloads, not a path: it contains no '/' and no control characters.
    filename: str
    content_type: str  # The media type of downloads (RFC 9110, section 8.3.1).
    size_bytes: int  # Size of the content in bytes; 0 if not known yet.
    blob_sha256: str  # SHA-256 of the content, or "" until the upload has ended.
    # pending until the first byte is durable; uploading until the content is complete; then available;
    # tombstoned after its retention period; finally deleted.
    status: str
    # When the retention period ends and the content is removed. For a tombstoned file: when the record
    # is removed as well. "" for never, and until the file is available.
    expires_at: str
    created_at: str  # When the record was created.
    kind: str = ""  # The kind of the file. Its record is under /project-files, /vms or /backups.
    # The folder of the file in its bucket, such as `lab 7/r1`; "" for the top of the bucket. It has at
    # most 64 parts, with '/' between them. Each is a name as `filename` is, and not `.` or `..`.
    path: str = ""
    protected_until: str = ""  # The file cannot be deleted before this time. "" if it is not protected.


class ManifestImage(Struct, frozen=True, kw_only=True):
    """A disk image that a project needs."""

    filename: str  # The name of the image in the project.
    md5: str  # Its MD5, or "" if the archive has none. `GET /api/v1/vms?md5=` finds such an image.


class Manifest(Struct, frozen=True, kw_only=True):
    """The contents of the archive of a project. All fields but `archive` are empty unless it is `gns3`."""

    file_uuid: str  # The file.
    # gns3: a zip file with a project in it. damaged: it looks like one but cannot be read; it is stored
    # nevertheless. other: anything else, as far as the archive was examined.
    archive: str
    project_name: str  # The project's name, or "".
    format_version: str  # The revision of the project's file format.
    images: list[ManifestImage]  # The disk images that the project needs.
    # Whether the archive was examined only in part. It may then need more images than are listed, and
    # `other` may still be a project.
    truncated: bool


class Bucket(Record, frozen=True, kw_only=True):
    """A bucket."""

    bucket_id: str  # The bucket. The default bucket's id is all zeros.
    name: str  # The name of the bucket, unique in the cluster.
    owner_id: str  # The user who owns the file or bucket and has admin permission on it.
    quota_bytes: int  # Limit for the total size of the bucket's finished files in bytes; 0 means no limit.
    used_bytes: int  # Bytes of finished files.
    reserved_bytes: int = 0  # Bytes of the quota that are reserved for unfinished uploads.
    # How nodes store the content: `hot` as whole files, `cold` as compressed chunks that files share,
    # `auto` cold after a time.
    storage: str = "auto"
    file_count: int  # Number of files, finished or not.
    trash_days: int | None = None  # As in the request. Absent: the cluster's.
    protect_days: int = 0  # Days in which a new file of the bucket cannot be deleted; 0 for none.
    trash_files: int = 0  # Number of files in its trash.
    trash_bytes: int = 0  # Bytes of the files in its trash; the quota does not count them.
    created_at: str  # When the record was created.
    updated_at: str  # When the record last changed.


class BucketUpload(Struct, frozen=True, kw_only=True):
    """An unfinished upload: of a file, or a partial upload (tus concatenation)."""

    file_uuid: str  # The file.
    kind: str  # The kind of file that is being uploaded, or `partial`.
    owner_id: str  # The user who owns the file or bucket and has admin permission on it.
    filename: str  # The name of the file, or "" for a partial upload.
    size_bytes: int | None = None  # The declared size. Absent until the client has declared it.
    offset_bytes: int  # Number of bytes received.
    reserved_bytes: int  # Bytes of the bucket's quota that are reserved for this upload.
    part_of: str  # The `file_uuid` of the file that this partial upload has become a part of, or "".
    created_at: str  # When the record was created.
    expires_at: str  # When the upload expires if no more bytes arrive.


class Folder(Struct, frozen=True, kw_only=True):
    """A folder: it exists as long as a file is in it or in a folder below it."""

    name: str  # Its name in the requested folder.
    # The folder of the file in its bucket, such as `lab 7/r1`; "" for the top of the bucket. It has at
    # most 64 parts, with '/' between them. Each is a name as `filename` is, and not `.` or `..`.
    path: str


class TrashedFile(Struct, frozen=True, kw_only=True):
    """A deleted file that can be restored."""

    file_uuid: str  # The file.
    kind: str  # The kind of the file. Its record is under /project-files, /vms or /backups.
    bucket_id: str  # The bucket. The default bucket's id is all zeros.
    owner_id: str  # The user who owns the file or bucket and has admin permission on it.
    # A label for people and downloads, not a path: it contains no '/' and no control characters.
    filename: str
    # The folder of the file in its bucket, such as `lab 7/r1`; "" for the top of the bucket. It has at
    # most 64 parts, with '/' between them. Each is a name as `filename` is, and not `.` or `..`.
    path: str
    size_bytes: int  # Size of the content in bytes; 0 if not known yet.
    blob_sha256: str  # SHA-256 of the content, or "" until the upload has ended.
    parent_backup_uuid: str  # The backup that it builds on, or "".
    deleted_by: str  # The user who deleted it.
    deleted_at: str  # When it was deleted.
    # When it is deleted for good. That may happen earlier if the disks are almost full, or if the trash
    # has more bytes than the quota of the bucket.
    expires_at: str


class RestoredFile(Struct, frozen=True, kw_only=True):
    """A file that was restored."""

    file_uuid: str  # The file.
    kind: str  # The kind of the file. Its record is under /project-files, /vms or /backups.
    bucket_id: str  # The bucket. The default bucket's id is all zeros.
    parents: list[str]  # Backups that it builds on, and that were restored with it.


class ProtectedFile(Struct, frozen=True, kw_only=True):
    """A protected file."""

    file_uuid: str  # The file.
    protected_until: str  # The file cannot be deleted before this time. "" if it is not protected.


class Snapshot(Struct, frozen=True, kw_only=True):
    """A snapshot of the metadata."""

    snapshot_id: str  # The snapshot.
    coordinator_id: str  # The coordinator with the file, in backups/ of its directory.
    log_index: int  # The last entry of the log in it.
    taken_at: str  # The time of the snapshot.
    # held while the content of its files stays on the disks; expired when that time is over; evicted if
    # it ended early, as the disks were almost full.
    hold: str
    held_until: str  # Until when the content of its files stays.
    size_bytes: int  # Size of the snapshot in bytes.
    files: int  # Number of files in it.
    sent_to: str  # The other place that has a copy, or "".
    held_blobs: int  # Contents of deleted files that leave the disks after it.
    held_bytes: int  # Their total size, each once.
    is_readable: bool  # Whether the coordinator is a member. If not, single files cannot be restored.


class SnapshotFile(Struct, frozen=True, kw_only=True):
    """A file as a snapshot has it."""

    file_uuid: str  # The file.
    kind: str  # The kind of the file. Its record is under /project-files, /vms or /backups.
    bucket_id: str  # The bucket. The default bucket's id is all zeros.
    bucket_name: str  # The name of the bucket then.
    owner_id: str  # The user who owns the file or bucket and has admin permission on it.
    # A label for people and downloads, not a path: it contains no '/' and no control characters.
    filename: str
    # The folder of the file in its bucket, such as `lab 7/r1`; "" for the top of the bucket. It has at
    # most 64 parts, with '/' between them. Each is a name as `filename` is, and not `.` or `..`.
    path: str
    size_bytes: int  # Size of the content in bytes; 0 if not known yet.
    blob_sha256: str  # SHA-256 of the content, or "" until the upload has ended.
    parent_backup_uuid: str  # The backup that it builds on, or "".
    created_at: str  # When the record was created.


class RevivedFile(Struct, frozen=True, kw_only=True):
    """A file that came back from a snapshot, as a new file."""

    file_uuid: str  # The file.
    kind: str  # The kind of the file. Its record is under /project-files, /vms or /backups.
    bucket_id: str  # The bucket. The default bucket's id is all zeros.
    owner_id: str  # The user who owns the file or bucket and has admin permission on it.


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A permission entry, with what it is on."""

    id: str  # The permission entry.
    permission: str  # admin implies write, write implies read.
    principal_id: str  # The user, group or role that receives the permission.
    principal_type: str  # The kind of principal that has the permission.
    granted_by: str  # The user who granted it last.
    created_at: str  # When the record was created.
    expires_at: str  # When the permission expires, or "" for never.
    target: str = ""  # Whether the permission is on a bucket or on a file.
    bucket_id: str = ""  # The bucket, or the bucket of the file.
    file_uuid: str = ""  # The file, or "" for a permission on a bucket.
    name: str = ""  # The name of the bucket or of the file.
    kind: str = ""  # The kind of the file, or "" for a permission on a bucket.


class Share(Secret, frozen=True, kw_only=True):
    """A public token, shown once."""

    token: str  # 256 random bits. Anyone who has the token can read the file.
    url: str  # Address of the content, for GET and HEAD without a credential.
    file_uuid: str  # The file.
    bucket_uuid: str  # The bucket. The default bucket's id is all zeros.
    expires_at: str  # When the link expires.


class ListedShare(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A public token without its secret, with the name of its file."""

    id: str  # The id of the public token. It is not secret.
    file_uuid: str  # The file.
    bucket_uuid: str  # The bucket. The default bucket's id is all zeros.
    # The user who created it. It works only while this user has admin permission on the file.
    created_by: str
    created_at: str  # When the record was created.
    expires_at: str  # When the link expires.
    status: str  # When the link expires. An expired or revoked link is answered with 410.
    # A label for people and downloads, not a path: it contains no '/' and no control characters.
    filename: str = ""
    kind: str = ""  # The kind of the file. Its record is under /project-files, /vms or /backups.


class User(Struct, frozen=True, kw_only=True):
    """The caller, and how long it may go on with the token that it has shown."""

    user_id: str  # The id of the user, as in `sub` of its tokens.
    roles: list[str]  # Roles of the user. The role `admin` has every permission.
    groups: list[str]  # Groups of the user.
    disabled: bool  # Whether the user is disabled: its tokens are rejected, and no new ones are minted.
    created_at: str  # When the record was created.
    updated_at: str  # When the record last changed.
    # When the token of this request expires, by its lifetime or because its key was replaced.
    token_expires_at: str = ""
    session_id: str = ""  # The session of the token of this request.


class MintedToken(Secret, frozen=True, kw_only=True):
    """A user token, shown once."""

    token: str  # A JWT. Send it as `Authorization: Bearer TOKEN`.
    user_id: str  # The id of the user, as in `sub` of its tokens.
    expires_at: str  # When the token expires.
    roles: list[str]  # Roles of the user. The role `admin` has every permission.
    groups: list[str]  # Groups of the user.


class RotatedKey(Struct, frozen=True, kw_only=True):
    """The key that signs user tokens from now on."""

    kid: str  # The name of the key in `/.well-known/jwks.json` and in the tokens that it signs.
    others_end_at: str  # When tokens of the previous keys start to be rejected.


class Group(Struct, frozen=True, kw_only=True):
    """A group."""

    group: str  # The name of the group, as permissions name it.
    description: str  # What the group is for, for people.
    members: int  # How many users are in the group.


class GroupMember(Struct, frozen=True, kw_only=True):
    """A user in a group."""

    user_id: str  # The id of the user, as in `sub` of its tokens.
    # Why the user is in the group: `local` if an administrator has added it, and the name of each
    # provider of sign-in that reports the group.
    sources: list[str]
    disabled: bool  # Whether the user is disabled.


class Provider(Struct, frozen=True, kw_only=True):
    """A provider. Its secrets are never shown."""

    name: str  # The name of the provider.
    label: str  # What people choose.
    issuer: str  # The issuer, as the provider writes it in its ID tokens.
    client_id: str  # The client that the provider knows this cluster as.
    has_secret: bool  # Whether the client has a secret.
    command_client_id: str  # The client of the command; "" if it is the same.
    has_command_secret: bool  # Whether the client of the command has a secret.
    scopes: list[str]  # The scopes that are requested.
    name_claim: str  # The claim that becomes the user's name.
    groups_claim: str  # The claim that lists the groups.
    allowed_groups: list[str]  # The groups that may sign in; `*` for everybody.
    admin_groups: list[str]  # The groups whose members get the role `admin`.
    # Patterns of the provider's groups that become groups here; none for all of them.
    taken_groups: list[str]
    token_seconds: int  # Lifetime of a token. It is renewed before, while the provider's session lasts.
    # The only authorities that may have issued the provider's certificate, in PEM. If empty: those that
    # the coordinators' machines trust.
    ca_pem: str
    # What the provider must know as redirect URIs: for the console at each of its addresses, and for
    # the command, which is given a port by the system.
    redirect_uris: list[str]
    updated_at: str  # When the record last changed.


class StartedSignIn(Secret, frozen=True, kw_only=True):
    """A sign-in that has begun, and the page at which the person signs in."""

    authorization_url: str  # The provider's page, which the person opens.
    attempt: str  # The sign-in that was begun, sealed: the client keeps it until it is finished.
    # What the provider must return with the code. The client compares it with that of the sign-in that
    # it began.
    state: str
    user_code: str  # What the person enters on that page (flow `device`).
    complete_url: str  # That page with the code filled in, "" if there is none (flow `device`).
    interval_seconds: int  # How long to wait between two questions (flow `device`).
    expires_at: str  # Until when the sign-in can be finished.


class SignedIn(Secret, frozen=True, kw_only=True):
    """A token of the person, shown once, and what renews it."""

    token: str  # A JWT. Send it as `Authorization: Bearer TOKEN`.
    user_id: str  # The id of the user, as in `sub` of its tokens.
    expires_at: str  # When the token expires.
    roles: list[str]  # Roles of the user. The role `admin` has every permission.
    groups: list[str]  # Groups of the user.
    renewal: str  # What renews the token, sealed; "" if the provider allows no renewal.
    renew_at: str  # When the client should renew the token.


class Session(Struct, frozen=True, kw_only=True):
    """A session of a user: a first token, and those that were renewed from it."""

    session_id: str  # The session: a first token, and those that were renewed from it. It is not secret.
    label: str  # What the session is of, for people.
    created_by: str  # Who made the first token.
    created_at: str  # When the record was created.
    renewed_at: str  # When the newest token was made.
    expires_at: str  # When the last of the tokens expires.
    is_current: bool  # Whether the token of this request is of the session.


class Invitation(Secret, frozen=True, kw_only=True):
    """A link with which a user gets a token, once. The secret is shown only in this response."""

    user_id: str  # The id of the user, as in `sub` of its tokens.
    url: str  # The page of the console that redeems it. The secret is behind the `#`.
    token: str  # The secret of the link.
    expires_at: str  # When the link stops working.


class ListedInvitation(Struct, frozen=True, kw_only=True):
    """The newest invitation of a user, without its secret."""

    user_id: str  # The id of the user, as in `sub` of its tokens.
    created_by: str  # Who made it.
    created_at: str  # When the record was created.
    expires_at: str  # When the link stops working.
    used_at: str  # When it was used, or "".


class JoinToken(Struct, frozen=True, kw_only=True):
    """A join token without its secret."""

    token_id: str  # The id of a join token. It is not secret.
    node_id: str  # The only node that may use the token, or "" for any node.
    max_uses: int  # How many nodes may join with the token.
    uses: int  # How many nodes have joined with the token.
    created_by: str  # The user who created the token.
    created_at: str  # When the record was created.
    expires_at: str  # When the token expires.


class MintedJoinToken(Secret, frozen=True, kw_only=True):
    """A join token, shown once."""

    token_id: str  # The id of a join token. It is not secret.
    token: str  # The whole token, which includes the fingerprint of the cluster's root certificate.
    expires_at: str  # When the token expires.
    node_id: str  # The only node that may use the token, or "" for any node.
    max_uses: int  # How many nodes may join with the token.


class JobRun(Struct, frozen=True, kw_only=True):
    """One run of a job."""

    run_id: str  # The run.
    job_name: str  # The job.
    node_id: str  # The coordinator that runs it.
    invoked_by: str  # The user who started it, or `schedule`.
    started_at: str  # When the run began.
    completed_at: str  # When the run ended, or "" while it runs.
    status: str  # running until the run ends; then completed or failed.
    result: Any  # Progress so far, or the final result. The fields depend on the job.


class Job(Struct, frozen=True, kw_only=True):
    """A job that can be triggered."""

    job_name: str  # The job.
    description: str  # What it does.
    schedule_s: int  # Seconds between two scheduled runs, or 0 if the job has no schedule.
    last_run: JobRun | None = None  # Its newest run. Absent if it has never run.


class TriggeredRun(Struct, frozen=True, kw_only=True):
    """The run has begun."""

    run_id: str  # The run.
    job_name: str  # The job.
    status: str  # running until the run ends; then completed or failed.


class Node(Struct, frozen=True, kw_only=True):
    """A node that has joined."""

    id: str  # The id of a node.
    url: str  # The address for clients, or "" if this member does not know it.
    address: str  # An IPv4 or IPv6 address, or the DNS name of the machine.
    api_port: int  # The port for clients.
    peer_port: int  # The port for other members, or 0 until the node has run once.
    zone: str  # Nodes in one zone are expected to fail together, for example a rack. "" for none.
    weight: int  # Relative share of new files compared with other nodes.
    joined_at: str  # When the node joined.
    draining: bool = False  # Whether new files are kept away from the node.


class RevokedNode(Struct, frozen=True, kw_only=True):
    """The certificates of the node are revoked; what it held, and what only it held."""

    id: str  # The id of a node.
    replicas: int  # Replicas on the node, counted up to 10000. Repair creates others.
    uploads: int  # Unfinished uploads on the node, counted up to 10000.
    # Blobs that no other live node has, counted up to 10000. To keep them, bring the node's disk back.
    only_there: int
    uploads_only_there: list[str]  # The first unfinished uploads whose bytes may be on no other live node.


class RemovedNode(Struct, frozen=True, kw_only=True):
    """The node is no member any more; its certificates are revoked."""

    id: str  # The id of a node.
    replicas: int  # Replicas that were on a node removed by force, counted up to 10000.
    uploads: int = 0  # Unfinished uploads that were on a node removed by force, counted up to 10000.


class Coordinator(Struct, frozen=True, kw_only=True):
    """A coordinator that was added: a learner until it has caught up, then a voter."""

    id: str  # The coordinator.
    address: str  # An IPv4 or IPv6 address, or the DNS name of the machine.
    peer_port: int  # The port for other members.
    api_port: int  # The port for clients.
    membership: str  # `voter`, or `learner`, which has no vote until it has caught up.


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One audit entry: who did what to which object, with which result."""

    time: str  # When the action ended, by this member's clock.
    action: str  # The action that was done or attempted.
    principal: str  # The user who did it, or `-` if unknown.
    target: str  # What the action was done to, as words that include ids.
    outcome: str  # `ok`, or the code of the error.
    request_id: str  # The id of the request, as in the logs.
    # The client's address, as reported by trusted proxies. Empty in entries of 0.1.0.
    client_address: str = ""
    member: str = ""  # Who has it on record; the client that asked knows.


class Ticket(Secret, frozen=True, kw_only=True):
    """A ticket, shown once. Anyone who has its address can read the file until it expires."""

    url: str  # Address of the content, for GET and HEAD without a credential. Every node accepts it.
    expires_at: str  # When the ticket expires.


LIST_FILTERS: Mapping[str, Sequence[str]] = {
    "project": ("project_id", "message", "tag", "status", "filename", "without_filename", "limit"),
    "image": ("md5", "status", "filename", "without_filename", "limit"),
    "backup": ("status", "filename", "without_filename", "limit"),
    "bucket": ("path", "recursive", "name", "status", "filename", "without_filename", "limit"),
    "audit": ("principal", "target", "action", "since", "until", "since_seconds", "limit"),
}

# ---- to here ----
