"""Commands about stored files: creation with the metadata row of their kind, changes, parts, deletion."""

from msgspec import UNSET, Struct, UnsetType

from metadata.model.later_fields import in_the_log, with_later
from metadata.model.records import BACKUP, PROJECT_FILE, VM, Caller, Manifest
from metadata.model.rules import (
    CONTENT_COMES_WITH_CREATION,
    FILES_ARE_PROTECTED,
    FILES_ARE_RENAMED,
    FILES_GO_TO_TRASH,
    FILES_HAVE_FOLDERS,
    UPLOADS_ARE_CONCATENATED,
)
from metadata.protocol.commands.root import ITSELF, NODES, Command
from runtime.bounds import Count, Document, Instant, MaybeOffset, NodeIds, Parts, Text


class StoredContent(Struct, frozen=True, kw_only=True):
    """Content of a file that is yet to be created, durable on `replicas`; the rest as CompleteUpload."""

    sha256: Text
    replicas: NodeIds
    md5: Text = ""
    manifest: Manifest | None = None
    as_of: Count = 0


class CreateFile(Command, frozen=True, kw_only=True):
    """The common fields of the creation of every kind: record, metadata and upload are one change.

    Optional fields of a kind have a default. `parts`: the file is assembled from these partial uploads of the
    caller, which are complete and belong to its upload from then on; repeating it changes nothing. `content`:
    all of it is there already, so there is no upload, and the file is available. `path`: its folder.
    `protect_seconds`: how long it cannot be deleted, from the creation on; 0 exempts it from the rule of
    its bucket. Replies with an UploadRecord.
    """

    fields_since = {
        "parts": UPLOADS_ARE_CONCATENATED,
        "content": CONTENT_COMES_WITH_CREATION,
        "path": FILES_HAVE_FOLDERS,
        "protect_seconds": FILES_ARE_PROTECTED,
    }
    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    bucket_id: Text
    filename: Text
    content_type: Text
    size_bytes: Count | None
    expected_sha256: Text
    retention_hours: Count | None
    # Stamped by the leader: who takes the bytes, the first from the client. A node may ask to be the first.
    placement: NodeIds = []
    parts: Parts | UnsetType = UNSET
    content: StoredContent | UnsetType = UNSET
    path: Text | UnsetType = UNSET
    protect_seconds: Count | UnsetType = UNSET


@with_later(PROJECT_FILE, in_the_log)
class CreateProjectFile(CreateFile, frozen=True, kw_only=True, tag="create_project_file"):
    """An exported network-emulation project, with the options of its export."""

    project_id: Text
    project_name: Text = ""
    version_tag: Text = ""
    compression: Text
    include_images: bool
    include_snapshots: bool
    is_read_only: bool
    keep_compute_ids: bool
    reset_mac_addresses: bool


@with_later(VM, in_the_log)
class CreateVm(CreateFile, frozen=True, kw_only=True, tag="create_vm"):
    """A virtual machine's disk image, with its hardware."""

    virt_type: Text
    format: Text
    vcpus: Count
    ram_mb: Count
    extra_attributes_json: Document


@with_later(BACKUP, in_the_log)
class CreateBackup(CreateFile, frozen=True, kw_only=True, tag="create_backup"):
    """A backup. `parent_backup_uuid` is "" or the backup that an incremental one builds on."""

    backup_type: Text
    is_compressed: bool
    is_encrypted: bool
    parent_backup_uuid: Text = ""
    source_node_id: Text


class UpdateFile(Command, frozen=True, kw_only=True):
    """The common fields of the change of every kind. Needs write. Replies with the kind's record.

    `filename`, `content_type`, `path`: unset to keep them. `retention_hours`: unset to keep it, None to keep
    the file until it is deleted. `unchanged_since_ms`: when the record was last changed, as known to the
    caller; precondition_failed if it has changed since.
    """

    fields_since = {
        "filename": FILES_ARE_RENAMED,
        "content_type": FILES_ARE_RENAMED,
        "path": FILES_HAVE_FOLDERS,
    }
    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    filename: Text | UnsetType = UNSET
    content_type: Text | UnsetType = UNSET
    path: Text | UnsetType = UNSET
    retention_hours: Count | UnsetType | None = UNSET
    unchanged_since_ms: Instant | UnsetType = UNSET


@with_later(PROJECT_FILE, in_the_log)
class UpdateProjectFile(UpdateFile, frozen=True, kw_only=True, tag="update_project_file"):
    """None leaves a field of the kind as it is. Replies with the ProjectFileRecord."""

    project_name: Text | None = None
    version_tag: Text | None = None
    compression: Text | None = None
    include_images: bool | None = None
    include_snapshots: bool | None = None
    is_read_only: bool | None = None
    keep_compute_ids: bool | None = None
    reset_mac_addresses: bool | None = None


@with_later(VM, in_the_log)
class UpdateVm(UpdateFile, frozen=True, kw_only=True, tag="update_vm"):
    """None leaves a field of the kind as it is. Replies with the VmRecord."""

    virt_type: Text | None = None
    format: Text | None = None
    vcpus: Count | None = None
    ram_mb: Count | None = None
    extra_attributes_json: Document | None = None


@with_later(BACKUP, in_the_log)
class UpdateBackup(UpdateFile, frozen=True, kw_only=True, tag="update_backup"):
    """None leaves a field of the kind as it is. Replies with the BackupRecord.

    A change to `full` drops the parent; a chain may not loop.
    """

    backup_type: Text | None = None
    is_compressed: bool | None = None
    is_encrypted: bool | None = None
    parent_backup_uuid: Text | None = None
    source_node_id: Text | None = None


class DeleteFile(Command, frozen=True, kw_only=True, tag="delete_file"):
    """Needs admin on the file (its owner has it). The file goes to the trash of its bucket, or for good.

    `unchanged_since_ms`: as in UpdateFile. `trash_ms`: stamped by the leader: how long it stays in the trash
    if its bucket has no other time; unset by members that know no trash, and then it goes for good. Protected
    while the file is; `override_protection` lets an admin of the cluster delete it all the same.
    """

    fields_since = {
        "trash_ms": FILES_GO_TO_TRASH,
        "for_good": FILES_GO_TO_TRASH,
        "override_protection": FILES_ARE_PROTECTED,
    }
    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    kind: Text  # 'project_file', 'vm', 'backup', or '' for any
    unchanged_since_ms: Instant | UnsetType = UNSET
    trash_ms: Count | UnsetType = UNSET
    for_good: bool | UnsetType = UNSET
    override_protection: bool | UnsetType = UNSET


class RecordProgress(Command, frozen=True, kw_only=True, tag="record_progress"):
    """Record that this many bytes are durable on the write quorum, which includes the holder `node_id`.

    Pending becomes uploading, and the expiry moves on. Needs write. It is a conflict if another node holds
    the upload, in another `epoch`, or if more bytes were recorded before. `placement`: the nodes that have
    the bytes, or are to have them, from now on, `node_id` first; empty to keep it. `reserve_bytes`: the least
    final size of the upload, if it is known in advance; a declared size is already reserved. Payload too
    large if the bucket's quota has no room for them.
    """

    proposed_by = ITSELF
    caller: Caller
    file_uuid: Text
    node_id: Text
    offset_bytes: Count
    epoch: Count = 0
    prefix_sha256: Text = ""  # of the bytes up to the offset
    placement: NodeIds = []
    reserve_bytes: Count = 0


class RewindUpload(Command, frozen=True, kw_only=True, tag="rewind_upload"):
    """The holder of an upload drops acknowledged bytes: the offset becomes `offset_bytes`, in a new epoch.

    Needs write. It is a conflict if another node holds it, in another epoch, or if fewer bytes were recorded.
    It is applied before any copy is cut. Replies with the UploadRecord.
    """

    proposed_by = ITSELF
    caller: Caller
    file_uuid: Text
    node_id: Text
    epoch: Count
    offset_bytes: Count
    prefix_sha256: Text


class TakeOverUpload(Command, frozen=True, kw_only=True, tag="take_over_upload"):
    """`successor`, of the placement, holds the upload in place of `holder`, at the recorded offset.

    Needs write. Compare and set: a conflict unless `holder`, `epoch` and `offset_bytes` are what is recorded.
    Proposals of the old holder are rejected from then on. Replies with the UploadRecord.
    """

    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    holder: Text
    successor: Text
    epoch: Count
    offset_bytes: Count


class DeclareSize(Command, frozen=True, kw_only=True, tag="declare_size"):
    """The size of an upload that began without one (tus creation-defer-length). Needs write."""

    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    size_bytes: Count


class CompleteUpload(Command, frozen=True, kw_only=True, tag="complete_upload"):
    """The content is whole and durable on `replicas`: the file becomes available.

    Needs write, checked here again.

    Replies with the ContentRecord; a repeated completion with the same content replies the same.
    `as_of`: a log index that was known before anybody looked whether `replicas` hold it; 0: unknown.
    Unavailable when one of them is to drop it, or has dropped it since: it may be repeated after a new look.
    `node_id`: who held the upload, in which `epoch`, when the content was found whole.
    Unavailable when another holds it by now: what was acknowledged there may be other bytes.
    `patch_offset`: where the bytes of the PATCH began that completed it, -1 when something else did; unset
    if unknown.
    """

    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    blob_sha256: Text
    size_bytes: Count
    replicas: NodeIds
    md5: Text = ""  # of VM images, 32 hex digits
    manifest: Manifest | None = None  # of project files: what their archive says
    as_of: Count = 0
    node_id: Text = ""
    epoch: Count = 0
    patch_offset: MaybeOffset | UnsetType = UNSET


class TerminateUpload(Command, frozen=True, kw_only=True, tag="terminate_upload"):
    """Give up an upload that has not ended; its record goes. Needs write. A finished file is a conflict."""

    proposed_by = NODES
    caller: Caller
    file_uuid: Text


class PlaceUpload(Command, frozen=True, kw_only=True, tag="place_upload"):
    """Move an upload to other nodes; the first of `placement` receives the bytes. The leader only.

    The leader has found the bytes up to `offset_bytes` durable on a write quorum of them. The epoch rises, so
    pending proposals of the previous holder are rejected. Compare and set: a conflict unless `epoch` and
    `offset_bytes` are as recorded; not_found if the upload has ended. `is_lost`: no node has these bytes, as
    `lost` proves (see RestartUpload), and it starts over at 0. Replies with the new epoch.
    """

    file_uuid: Text
    epoch: Count
    offset_bytes: Count
    placement: NodeIds
    is_lost: bool = False
    lost: NodeIds = []


class RestartUpload(Command, frozen=True, kw_only=True, tag="restart_upload"):
    """Start an upload over at 0, in a new epoch, because no node has its acknowledged bytes any more.

    Needs write. `lost`: nodes of the placement that were asked and do not have those bytes. All other nodes
    of the placement must have left the cluster, otherwise it is a conflict. Compare and set as in
    TakeOverUpload. Replies with the UploadRecord.
    """

    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    holder: Text
    epoch: Count
    offset_bytes: Count
    lost: NodeIds = []
    placement: NodeIds = []  # stamped by the leader, as in CreateFile


class CreatePartial(Command, frozen=True, kw_only=True, tag="create_partial"):
    """A partial upload (tus concatenation): bytes that are no file, and become a part of one.

    Nobody but the caller finds it. Needs what a file in the bucket needs, whose quota counts it. Replies with
    an UploadRecord.
    """

    since = UPLOADS_ARE_CONCATENATED
    proposed_by = NODES
    caller: Caller
    file_uuid: Text
    bucket_id: Text
    size_bytes: Count | None
    placement: NodeIds = []  # stamped by the leader, as in CreateFile
