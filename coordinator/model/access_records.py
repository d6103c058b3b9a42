"""What lists of one's permissions and links are made of: each with what it is on."""

from msgspec import Struct

from coordinator.model.records import PermissionRecord, PublicTokenRecord


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
