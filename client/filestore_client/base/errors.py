"""The errors of the API, one class for each `code`, and those of this client.

Codes and statuses are those of the OpenAPI document; a test compares them.
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

LATER_S = 60  # a server that asks for such a pause does not expect to recover in a moment


class FilestoreError(Exception):
    """An error of the server or of this machine. `details` explains it, and what to do."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self.details = details


class OffsetMismatch(FilestoreError):
    """The upload has another offset, `offset` in bytes."""

    code = "offset_mismatch"
    status = 409

    def __init__(self, details: str, *, offset: int = 0) -> None:
        super().__init__(details)
        self.offset = offset


class RangeNotSatisfiable(FilestoreError):
    """No requested range overlaps the content, of `size_bytes`."""

    code = "range_not_satisfiable"
    status = 416

    def __init__(self, details: str, *, size_bytes: int = 0) -> None:
        super().__init__(details)
        self.size_bytes = size_bytes


class Unavailable(FilestoreError):
    """No node answers, or there is no quorum; the same request may succeed later.

    `is_unknown`: the request may have been carried out all the same, and must not be repeated blindly.
    `retry_after_s`: how long to wait, as the server says, 0 if it says nothing.
    """

    code = "unavailable"
    status = 503

    def __init__(self, details: str, *, is_unknown: bool = False, retry_after_s: int = 0) -> None:
        super().__init__(details)
        self.is_unknown = is_unknown
        self.retry_after_s = retry_after_s

    @property
    def is_for_later(self) -> bool:
        """Whether nothing was done, and nothing changes soon: members have to be upgraded first."""
        return self.retry_after_s >= LATER_S


class Internal(FilestoreError):
    """The server failed, or answered what this client does not understand."""


class UntrustedServer(FilestoreError):
    """The server's certificate was not issued by the cluster whose root this client was given."""

    code = "untrusted_server"
    status = 502


class FileChanged(FilestoreError):
    """The file was changed since its upload began: the bytes read are a mixture."""

    code = "file_changed"
    status = 409


# ---- written by `python -m release.client` from here on ----


class InvalidRequest(FilestoreError):
    """The request is malformed; `details` names the field."""

    code = "invalid_request"
    status = 400


class Unauthorized(FilestoreError):
    """No credential, or an invalid, expired or revoked one. The body is the same for all reasons."""

    code = "unauthorized"
    status = 401


class Forbidden(FilestoreError):
    """The caller is known, but lacks the permission."""

    code = "forbidden"
    status = 403


class NotFound(FilestoreError):
    """No such record, or its file is deleted."""

    code = "not_found"
    status = 404


class MethodNotAllowed(FilestoreError):
    """The path exists; `Allow` lists what it answers to."""

    code = "method_not_allowed"
    status = 405


class NotAcceptable(FilestoreError):
    """The caller accepts nothing that this resource can be shown as."""

    code = "not_acceptable"
    status = 406


class RequestTimeout(FilestoreError):
    """Headers or body came too slowly."""

    code = "request_timeout"
    status = 408


class Conflict(FilestoreError):
    """The record is in a state that forbids this: a name taken, something that is not empty."""

    code = "conflict"
    status = 409


class NotAvailable(FilestoreError):
    """Content was asked of a file that is not `available` yet."""

    code = "not_available"
    status = 409


class Gone(FilestoreError):
    """It existed and will not come back: an expired upload or public token, a tombstoned file."""

    code = "gone"
    status = 410


class PreconditionFailed(FilestoreError):
    """A conditional header does not hold."""

    code = "precondition_failed"
    status = 412


class PayloadTooLarge(FilestoreError):
    """A body beyond its limit: JSON over 1 MiB, upload beyond the declared size, bucket quota."""

    code = "payload_too_large"
    status = 413


class UriTooLong(FilestoreError):
    """The target of the request has more bytes than are read."""

    code = "uri_too_long"
    status = 414


class UnsupportedMediaType(FilestoreError):
    """A content type or content encoding that is not accepted here."""

    code = "unsupported_media_type"
    status = 415


class UploadLocked(FilestoreError):
    """Another request is writing this upload now."""

    code = "upload_locked"
    status = 423


class RateLimited(FilestoreError):
    """Too many failures or requests from this address; `Retry-After` says how long to wait."""

    code = "rate_limited"
    status = 429


class ChecksumMismatch(FilestoreError):
    """The bytes are not those that the caller declared; nothing of them is kept."""

    code = "checksum_mismatch"
    status = 460


class NotImplementedHere(FilestoreError):
    """A method, or a transfer coding, that no resource of this service knows."""

    code = "not_implemented"
    status = 501


class InsufficientStorage(FilestoreError):
    """No node has room."""

    code = "insufficient_storage"
    status = 507


# ---- to here ----
CATALOGUE = tuple(
    kind for kind in FilestoreError.__subclasses__() if kind not in (UntrustedServer, FileChanged)
)
_BY_CODE = {kind.code: kind for kind in CATALOGUE}
_BY_STATUS = {kind.status: kind for kind in reversed(CATALOGUE)}
_DIGITS_MAX = 19  # of a number of bytes in 63 bits


class _Answer(msgspec.Struct, frozen=True):
    """The body of an error. Other fields of newer servers are ignored."""

    code: str = ""
    details: str = ""


def error_of(status: int, headers: Mapping[str, str], body: bytes, path: str) -> FilestoreError:
    """The error that an answer of 400 or more stands for.

    An answer to HEAD has no body: its status must do, and the path that was asked for.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        answer = _Answer()
    details = answer.details or f"{path}: the server answered {status}"
    kind = _BY_CODE.get(answer.code) or _BY_STATUS.get(status, Internal)
    if kind is Unavailable:
        return Unavailable(details, retry_after_s=_number(headers.get("Retry-After")))
    if kind is OffsetMismatch:
        return OffsetMismatch(details, offset=_number(headers.get("Upload-Offset")))
    if kind is RangeNotSatisfiable:
        size = headers.get("Content-Range", "").rpartition("/")[2]
        return RangeNotSatisfiable(details, size_bytes=_number(size))
    return kind(details)


def _number(text: str | None) -> int:
    return int(text) if text and len(text) <= _DIGITS_MAX and text.isascii() and text.isdigit() else 0
