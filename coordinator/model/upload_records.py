"""What the list of a bucket's unfinished uploads is made of."""

from msgspec import Struct


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
