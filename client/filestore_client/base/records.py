"""What the API answers, as types. Fields that a newer server adds are left out.

Times are RFC 3339 in UTC, "" for never; sizes are bytes; hashes are lower-case hexadecimal digits.
"""

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
        shown = [name for name in self.__struct_fields__ if name not in ("token", "url")]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Content(Struct, frozen=True, kw_only=True):
    """What is stored of a file: its size, checksum (sha256), name and type."""

    size_bytes: int
    sha256: str
    filename: str
    content_type: str = ""


# ---- written by `python -m release.client` from here on ----


class FileRecord(Record, frozen=True, kw_only=True):
    """What the record of every kind of file has."""

    file_uuid: str  # The file.
    bucket_id: str  # The bucket. The default one's id is all zeros.
    owner_id: str  # The user that owns it, and has admin permission on it.
    filename: str  # A label for people and downloads, never a path: no '/', no control characters.
    content_type: str  # The media type that downloads are sent with (RFC 9110, section 8.3.1).
    size_bytes: int  # Bytes of content; 0 while that is not known.
    blob_sha256: str  # SHA-256 of the content; "" until the upload has ended.
    # pending until the first byte is durable, uploading until the content is complete, then available;
    # tombstoned when its retention has passed; deleted at last.
    status: str
    # Whole hours from the moment the file becomes available until it is tombstoned. Absent where it is
    # kept until it is deleted.
    retention_period: int | None = None
    # When its retention period ends: the content is gone then. Of a tombstoned file when the record
    # goes as well. "" for never, and until the file is available.
    expires_at: str
    created_at: str  # When the record was made.
    updated_at: str  # When the record last changed.
    kind: ClassVar[Kind]


class Project(FileRecord, frozen=True, kw_only=True):
    """A project file: file record and project metadata in one."""

    project_id: str  # The project's id where it was made; any label.
    project_name: str  # The project's name, or "".
    version_tag: str  # The version's label, or "".
    compression: str  # How the project was compressed when it was exported.
    include_images: bool  # The export holds the disk images that it needs.
    include_snapshots: bool  # The export holds the project's snapshots.
    is_read_only: bool  # The project is meant to be opened, not changed.
    keep_compute_ids: bool  # The export keeps the ids of the computes it ran on.
    reset_mac_addresses: bool  # An import gives every interface a new MAC address.
    kind: ClassVar[Kind] = "project"


class Image(FileRecord, frozen=True, kw_only=True):
    """A VM image: file record and image metadata in one."""

    virt_type: str  # What runs the image.
    format: str  # The format of the image, as the program that runs it names it.
    vcpus: int  # Virtual processors of the machine.
    ram_mb: int  # Memory of the machine in MB.
    # A JSON object as text, at most 64 KiB, returned as it came; "" when none was given.
    extra_attributes_json: str
    md5: str  # MD5 of the content; "" where it is not known.
    kind: ClassVar[Kind] = "image"


class Backup(FileRecord, frozen=True, kw_only=True):
    """A backup: file record and backup metadata in one."""

    backup_type: str  # A full backup stands alone; an incremental one needs its parent.
    is_compressed: bool  # The content is compressed.
    is_encrypted: bool  # The content is encrypted, by whoever made the backup.
    parent_backup_uuid: str  # The backup that this one builds on; "" for a full one.
    source_node_id: str  # Where the backup was made; any label, or "".
    kind: ClassVar[Kind] = "backup"


class FileSummary(Record, frozen=True, kw_only=True):
    """An element of a bucket's listing, of whatever kind."""

    file_uuid: str  # The file.
    filename: str  # A label for people and downloads, never a path: no '/', no control characters.
    content_type: str  # The media type that downloads are sent with (RFC 9110, section 8.3.1).
    size_bytes: int  # Bytes of content; 0 while that is not known.
    blob_sha256: str  # SHA-256 of the content; "" until the upload has ended.
    # pending until the first byte is durable, uploading until the content is complete, then available;
    # tombstoned when its retention has passed; deleted at last.
    status: str
    # When its retention period ends: the content is gone then. Of a tombstoned file when the record
    # goes as well. "" for never, and until the file is available.
    expires_at: str
    created_at: str  # When the record was made.
    kind: str = ""  # Of which kind the file is: its record is under /project-files, /vms or /backups.


class ManifestImage(Struct, frozen=True, kw_only=True):
    """A disk image that a project needs."""

    filename: str  # The image, as the project names it.
    md5: str  # Its MD5, "" where the archive has none. `GET /api/v1/vms?md5=` finds such an image.


class Manifest(Struct, frozen=True, kw_only=True):
    """What the archive of a project says of itself. All but `archive` is empty unless it is `gns3`."""

    file_uuid: str  # The file.
    # gns3: a zip with a project in it. damaged: looks like one and cannot be read; it is stored all the
    # same. other: anything else, as far as it was looked at.
    archive: str
    project_name: str  # The project's name, or "".
    format_version: str  # The revision of the project's file format.
    images: list[ManifestImage]  # The disk images that the project needs.
    # Not all of the archive was looked at: it may need more images than are listed here, and `other`
    # may be a project all the same.
    truncated: bool


class Bucket(Record, frozen=True, kw_only=True):
    """A bucket."""

    bucket_id: str  # The bucket. The default one's id is all zeros.
    name: str  # A label of its own in the whole cluster.
    owner_id: str  # The user that owns it, and has admin permission on it.
    quota_bytes: int  # Finished files may hold so many bytes together; 0 is no limit.
    used_bytes: int  # Bytes of finished files.
    reserved_bytes: int = 0  # What uploads under way have reserved of the quota.
    file_count: int  # Files in it, finished or not.
    created_at: str  # When the record was made.
    updated_at: str  # When the record last changed.


class BucketUpload(Struct, frozen=True, kw_only=True):
    """An upload that has not ended: a file's, or a partial one (tus concatenation)."""

    file_uuid: str  # The file.
    kind: str  # The kind of the file that is uploaded, or `partial`.
    owner_id: str  # The user that owns it, and has admin permission on it.
    filename: str  # "" of a partial upload.
    size_bytes: int | None = None  # Absent while the client has not declared it.
    offset_bytes: int  # How many bytes have arrived.
    reserved_bytes: int  # How much of the bucket's quota it has reserved.
    part_of: str  # The `file_uuid` that a partial upload has become a part of; "" for none.
    created_at: str  # When the record was made.
    expires_at: str  # When it ends if no more bytes arrive.


class Grant(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A permission entry, with what it is on."""

    id: str  # The permission entry.
    permission: str  # admin implies write, write implies read.
    principal_id: str  # The user, the group or the role that has the permission.
    principal_type: str  # What the permission is given to.
    granted_by: str  # Who gave it last.
    created_at: str  # When the record was made.
    expires_at: str  # When it ends; from then on it counts as absent. "" for never.
    target: str = ""  # What it is on.
    bucket_id: str = ""  # The bucket, or that of the file.
    file_uuid: str = ""  # The file; "" where it is on a bucket.
    name: str = ""  # The name of the bucket or of the file.
    kind: str = ""  # Of which kind the file is; "" where it is on a bucket.


class Share(Secret, frozen=True, kw_only=True):
    """A public token, shown once."""

    token: str  # 256 random bits. Whoever has them can read the file.
    url: str  # Where the content is, for GET and HEAD without a credential.
    file_uuid: str  # The file.
    bucket_uuid: str  # The bucket. The default one's id is all zeros.
    expires_at: str  # When the link ends.


class ListedShare(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A public token without its secret, with the name of its file."""

    id: str  # The id of the public token, which is no secret.
    file_uuid: str  # The file.
    bucket_uuid: str  # The bucket. The default one's id is all zeros.
    created_by: str  # Who made it. It works while that user has admin here.
    created_at: str  # When the record was made.
    expires_at: str  # When the link ends.
    status: str  # An expired or revoked one answers 410.
    filename: str = ""  # A label for people and downloads, never a path: no '/', no control characters.
    kind: str = ""  # Of which kind the file is: its record is under /project-files, /vms or /backups.


class User(Struct, frozen=True, kw_only=True):
    """The caller, and how long it may go on with the token that it has shown."""

    user_id: str  # The user, as `sub` of its tokens.
    roles: list[str]  # Roles of the user. `admin` has every permission.
    groups: list[str]  # Groups of the user.
    disabled: bool  # Its tokens are refused, and none is minted.
    created_at: str  # When the record was made.
    updated_at: str  # When the record last changed.
    # When the token of this request ends, by itself or because another key signs tokens.
    token_expires_at: str = ""


class MintedToken(Secret, frozen=True, kw_only=True):
    """A user token, shown once."""

    token: str  # A JWT. Send it as `Authorization: Bearer TOKEN`.
    user_id: str  # The user, as `sub` of its tokens.
    expires_at: str  # When the token ends.
    roles: list[str]  # Roles of the user. `admin` has every permission.
    groups: list[str]  # Groups of the user.


class RotatedKey(Struct, frozen=True, kw_only=True):
    """The key that signs user tokens from now on."""

    kid: str  # Its name in `/.well-known/jwks.json`, and in the tokens that it signs.
    others_end_at: str  # When tokens of the keys before are refused.


class JoinToken(Struct, frozen=True, kw_only=True):
    """A join token without its secret."""

    token_id: str  # The id of a join token, which is no secret.
    node_id: str  # The only node that the token admits; "" for any.
    max_uses: int  # How many nodes it admits.
    uses: int  # How many nodes it has admitted.
    created_by: str  # Who made it.
    created_at: str  # When the record was made.
    expires_at: str  # When it ends.


class MintedJoinToken(Secret, frozen=True, kw_only=True):
    """A join token, shown once."""

    token_id: str  # The id of a join token, which is no secret.
    token: str  # The whole token, with the fingerprint of the cluster's root.
    expires_at: str  # When it ends.
    node_id: str  # The only node that the token admits; "" for any.
    max_uses: int  # How many nodes it admits.


class JobRun(Struct, frozen=True, kw_only=True):
    """One run of a job."""

    run_id: str  # The run.
    job_name: str  # The job.
    node_id: str  # The coordinator that works on it.
    invoked_by: str  # The user that asked for it, or `schedule`.
    started_at: str  # When it began.
    completed_at: str  # When it ended; "" while it runs.
    status: str  # running until it ends; then completed, or failed.
    result: Any  # What it has done so far, or what it came to; each job has its own.


class Job(Struct, frozen=True, kw_only=True):
    """A job that can be triggered."""

    job_name: str  # The job.
    description: str  # What it does.
    schedule_s: int  # Seconds between two runs of themselves; 0 for none.
    last_run: JobRun | None = None  # Its newest run. Absent while it never ran.


class TriggeredRun(Struct, frozen=True, kw_only=True):
    """The run has begun."""

    run_id: str  # The run.
    job_name: str  # The job.
    status: str  # running until it ends; then completed, or failed.


class Node(Struct, frozen=True, kw_only=True):
    """A node that has joined."""

    id: str  # The id of a node.
    url: str  # Where clients reach it; "" while that is not known here.
    address: str  # An IPv4 or IPv6 address, or the DNS name of the machine.
    api_port: int  # The port that clients reach it at.
    peer_port: int  # The port that peers reach it at; 0 until it has run once.
    zone: str  # What fails together, say a rack; "" for none.
    weight: int  # Its share of new files, beside those of others.
    joined_at: str  # When it joined.
    draining: bool = False  # Nothing new is placed there.


class RevokedNode(Struct, frozen=True, kw_only=True):
    """The certificates of the node are revoked; what it held, and what only it held."""

    id: str  # The id of a node.
    replicas: int  # Its copies, counted up to 10000: repair makes others.
    uploads: int  # Unfinished uploads placed there, counted up to 10000.
    # Blobs that no other node has which is there, counted up to 10000: its disk must come back, or they
    # are given up.
    only_there: int
    uploads_only_there: list[str]  # The first unfinished uploads of which the same may be true.


class RemovedNode(Struct, frozen=True, kw_only=True):
    """The node is no member any more; its certificates are revoked."""

    id: str  # The id of a node.
    replicas: int  # Copies that went with a node removed by force, counted up to 10000.
    uploads: int = 0  # Unfinished uploads placed on a node removed by force, counted up to 10000.


class Coordinator(Struct, frozen=True, kw_only=True):
    """A coordinator that was added: a learner until it has caught up, then a voter."""

    id: str  # The coordinator.
    address: str  # An IPv4 or IPv6 address, or the DNS name of the machine.
    peer_port: int  # The port that members reach it at.
    api_port: int  # The port that clients reach it at.
    membership: str  # voter; or learner, which has no vote while it catches up.


class AuditEntry(Struct, frozen=True, kw_only=True):
    """Who did what to which object, and how it ended."""

    time: str  # When it ended, by the clock of this member.
    action: str  # What was done, or tried.
    principal: str  # Who did it; `-` where nobody knows.
    target: str  # What it was done to: words, with ids among them.
    outcome: str  # `ok`, or the code of the error.
    request_id: str  # The request, as logs have it.
    # From where it was asked, as trusted proxies tell; empty in entries of old versions.
    client_address: str = ""
    member: str = ""  # Who has it on record; the client that asked knows.


class Ticket(Secret, frozen=True, kw_only=True):
    """A ticket, shown once. Whoever has its address can read the file until it ends."""

    url: str  # Where the content is, for GET and HEAD without a credential. Every node takes it.
    expires_at: str  # When the ticket ends.


# ---- to here ----
