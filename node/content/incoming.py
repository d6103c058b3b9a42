"""The bytes of one request, as its headers describe them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ca.errors import Forbidden, InvalidRequest, PayloadTooLarge
from metadata.model.records import PARTIAL, ContentRecord, UploadRecord
from web.headers.digests import Checksum
from web.headers.ranges import SIZE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingBytes:
    """The bytes of a request that writes an upload.

    `start`: offset of the first byte; None if no bytes come, and the request only asks for the completion.
    `length_bytes`: number of bytes; None if the headers do not tell it. `size_bytes`: size of the content, if
    this request declares it. `is_whole`: the bytes are all of the content, and replace what came before.
    `checksums` are of these bytes, `whole_sha256` ("" if not declared) is of the whole content.
    `patch_offset`: the `start` of a PATCH, else -1; the log records it with the completion. `base`: the
    content that the body refers to, if the body is a delta (`node/cold/delta.py`).
    """

    start: int | None
    length_bytes: int | None = None
    size_bytes: int | None = None
    is_whole: bool = False
    checksums: Sequence[Checksum] = ()
    whole_sha256: str = ""
    patch_offset: int = -1
    base: ContentRecord | None = None

    @property
    def stop(self) -> int:
        """Return the end of the bytes in the content, as far as the headers define it."""
        return (self.start or 0) + (self.length_bytes or 0)

    def is_all_of(self, record: UploadRecord) -> bool:
        """Return whether these bytes are all of the content, of known length, and no byte came before."""
        size_bytes = self.size_bytes if record.size_bytes is None else record.size_bytes
        if self.length_bytes is None or record.offset_bytes or record.kind == PARTIAL:
            return False
        if self.is_whole:
            return size_bytes in (None, self.length_bytes)
        return self.patch_offset == 0 and size_bytes == self.length_bytes

    def require_fit(self, record: UploadRecord) -> None:
        """Raise PayloadTooLarge or InvalidRequest if these bytes do not fit the declared size."""
        size_bytes = self.size_bytes if record.size_bytes is None else record.size_bytes
        limit_bytes = SIZE_BYTES_MAX if size_bytes is None else size_bytes
        if self.stop > limit_bytes:
            raise PayloadTooLarge(f"Content-Length: the upload was declared with {limit_bytes} bytes.")
        if self.is_whole and size_bytes is not None and self.length_bytes not in (None, size_bytes):
            raise InvalidRequest(f"Content-Length: the upload was declared with {size_bytes} bytes.")

    def require_length(self, received_bytes: int, record: UploadRecord) -> None:
        """Raise InvalidRequest if the body does not have its declared length."""
        length_bytes = record.size_bytes if self.is_whole else self.length_bytes
        if length_bytes not in (None, received_bytes):
            raise InvalidRequest(f"The body has {received_bytes} bytes; {length_bytes} were declared.")


def require_takes_bytes(_request: object, record: UploadRecord) -> None:
    """Raise Forbidden for a final upload, whose bytes are those of its parts (tus concatenation)."""
    if record.parts:
        raise Forbidden("A final upload takes no bytes: its content is that of its parts.")


COMPLETION: Final = IncomingBytes(start=None)  # a request without bytes, which only asks for the completion
