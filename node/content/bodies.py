"""The JSON answers of the content routes."""

from msgspec import Struct


class ContentStored(Struct, frozen=True, kw_only=True):
    """The file is available."""

    file_uuid: str
    status: str
    blob_sha256: str
    size_bytes: int


class UploadOffset(Struct, frozen=True, kw_only=True):
    """Bytes of an upload that are durable; for an available file, its size."""

    offset: int
