"""Records of files, for tests that need one whatever is in it."""

from typing import Any

import msgspec

from metadata.model.records import FileRecord

_AVAILABLE = FileRecord(
    file_uuid="f",
    bucket_id="b",
    owner_id="o",
    filename="",
    content_type="",
    size_bytes=0,
    blob_sha256="",
    status="available",
    created_at_ms=0,
    updated_at_ms=0,
)


def available_file(**fields: Any) -> FileRecord:
    """An empty file in bucket `b` of owner `o`, but for these fields."""
    return msgspec.structs.replace(_AVAILABLE, **fields)
