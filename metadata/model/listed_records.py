"""Records of lists: permissions, links, uploads, groups, sessions. Apart from `records`, which is full.

They would make `records` longer than a file may be.

Tested by tests/unit/coordinator/machine/test_lists.py.
"""

from msgspec import Struct

from metadata.model.records import PermissionRecord, PublicTokenRecord


class FolderPage(Struct, frozen=True):
    """A page of the names of folders. `next_name`: "" when nothing remains."""

    folders: list[str]
    next_name: str


class GrantRecord(PermissionRecord, frozen=True, kw_only=True):
    """A permission with what it is on. Of a bucket `file_uuid` and `kind` are ""."""

    target: str
    bucket_id: str
    file_uuid: str
    name: str
    kind: str


class GrantPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    permissions: list[GrantRecord]
    next_cursor: int


class ShareRecord(PublicTokenRecord, frozen=True, kw_only=True):
    """A public token with the name and the kind of its file."""

    filename: str
    kind: str


class SharePage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    public_tokens: list[ShareRecord]
    next_cursor: int


class BucketUpload(Struct, frozen=True):
    """An upload that has not ended. `kind`: as of a file, or PARTIAL.

    `size_bytes` is None while it is not declared. `part_of`: the file that a partial upload is a part of, ""
    for none. `reserved_bytes`: of the quota of its bucket.
    """

    file_uuid: str
    kind: str
    owner_id: str
    filename: str
    size_bytes: int | None
    offset_bytes: int
    reserved_bytes: int
    part_of: str
    created_at_ms: int
    expires_at_ms: int


class BucketUploadPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    uploads: list[BucketUpload]
    next_cursor: int


class GroupRecord(Struct, frozen=True):
    """A group. `members`: the number of its users, disabled ones included."""

    group: str
    description: str
    members: int


class GroupPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    groups: list[GroupRecord]
    next_cursor: int


class MemberRecord(Struct, frozen=True):
    """A user in a group. `sources`: `local` for administrators, and names of providers."""

    user_id: str
    sources: list[str]
    disabled: bool


class MemberPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    members: list[MemberRecord]
    next_cursor: int


class SessionRecord(Struct, frozen=True):
    """A session of a user, with the maker of its first token, and the time of its newest one."""

    session_id: str
    label: str
    created_by: str
    created_at_ms: int
    renewed_at_ms: int
    expires_at_ms: int


class SessionPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    sessions: list[SessionRecord]
    next_cursor: int


class InvitationRecord(Struct, frozen=True):
    """The newest invitation of a user. `used_at_ms` is 0 while it can be used."""

    user_id: str
    created_by: str
    created_at_ms: int
    expires_at_ms: int
    used_at_ms: int


class InvitationPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    invitations: list[InvitationRecord]
    next_cursor: int


class TrashedFile(Struct, frozen=True):
    """A deleted file that can be restored until `due_at_ms`. `path`: "" at the top of its bucket.

    `parent_backup_uuid`: the backup that it builds on, "" for none.
    """

    file_uuid: str
    kind: str
    bucket_id: str
    owner_id: str
    filename: str
    path: str
    size_bytes: int
    blob_sha256: str
    parent_backup_uuid: str
    deleted_by: str
    deleted_at_ms: int
    due_at_ms: int


class TrashPage(Struct, frozen=True):
    """`next_cursor` is 0 when nothing remains."""

    files: list[TrashedFile]
    next_cursor: int


class RestoredFile(Struct, frozen=True):
    """A file that has come back into a bucket. `parents`: the backups that came back with it."""

    file_uuid: str
    kind: str
    bucket_id: str
    parents: list[str]


class Squeezed(Struct, frozen=True):
    """Files that left the trash early, and their bytes. `more`: it may still have others."""

    files: int
    bytes: int
    more: bool
