"""Records that only lists return: permissions, links, uploads. Apart from `records`, which is full.

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
