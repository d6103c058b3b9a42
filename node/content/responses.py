"""The JSON bodies of the content routes. Shared by the routes and their handlers.

Tested by tests/cluster/test_uploads.py.
"""

from typing import Annotated

from msgspec import Meta, Struct

from api.bodies.fields import SIZE_BYTES_MAX, BlobSha256, FileStatus, FileUuid, SizeBytes

Offset = Annotated[
    int,
    Meta(
        ge=0,
        le=SIZE_BYTES_MAX,
        description="Bytes of the upload that are durable; for an available file, its size.",
        examples=[524288],
    ),
]


class ContentStored(Struct, frozen=True, kw_only=True):
    """The file is available."""

    file_uuid: FileUuid
    status: FileStatus
    blob_sha256: BlobSha256
    size_bytes: SizeBytes


class UploadOffset(Struct, frozen=True, kw_only=True):
    """The offset of an upload."""

    offset: Offset
