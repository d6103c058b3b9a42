"""Shared by all: the root of every error that is raised on purpose, and the catalogue of codes users see.

A `code` never changes once shipped (`/api/v1` is a promise); `status` is the HTTP answer. Their fault and our
fault are different classes. The OpenAPI document and the README table are made from `CATALOGUE`.
"""

from typing import ClassVar

CATALOGUE: list[type["FilestoreError"]] = []  # those that have a code of their own


class FilestoreError(Exception):
    """The root of all errors. `details` says what was wrong with this request and what to do."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal Server Error"
    lasts: ClassVar[bool] = False  # a problem that every request meets until it is fixed

    def __init_subclass__(cls, *, code: str = "", status: int = 0, title: str = "") -> None:
        """A code makes it one of the catalogue."""
        super().__init_subclass__()
        if code:
            cls.code, cls.status, cls.title = code, status, title
            CATALOGUE.append(cls)

    def __init__(self, details: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(details)
        self.details = details
        self.headers = headers or {}


class InvalidRequest(FilestoreError, code="invalid_request", status=400, title="Invalid Request"):
    """The request is malformed; `details` names the field."""


class Unauthorized(FilestoreError, code="unauthorized", status=401, title="Unauthorized"):
    """No credential, or an invalid, expired or revoked one. The body is the same for all reasons."""

    def __init__(self, details: str = "") -> None:
        super().__init__("A valid credential is required.")
        self.reason = details  # for the audit log only, never for the answer


class Forbidden(FilestoreError, code="forbidden", status=403, title="Forbidden"):
    """The caller is known, but lacks the permission."""


class NotFound(FilestoreError, code="not_found", status=404, title="Not Found"):
    """No such record, or its file is deleted."""


class MethodNotAllowed(FilestoreError, code="method_not_allowed", status=405, title="Method Not Allowed"):
    """The path exists; `Allow` lists what it answers to."""


class NotAcceptable(FilestoreError, code="not_acceptable", status=406, title="Not Acceptable"):
    """The caller accepts nothing that this resource can be shown as."""


class RequestTimeout(FilestoreError, code="request_timeout", status=408, title="Request Timeout"):
    """Headers or body came too slowly."""


class Conflict(FilestoreError, code="conflict", status=409, title="Conflict"):
    """The record is in a state that forbids this: a name taken, something that is not empty."""


class NotAvailable(FilestoreError, code="not_available", status=409, title="Not Available"):
    """Content was asked of a file that is not `available` yet."""


class OffsetMismatch(FilestoreError, code="offset_mismatch", status=409, title="Offset Mismatch"):
    """The upload has another offset; the answer carries it in `Upload-Offset`."""

    def __init__(self, details: str, *, offset: int) -> None:
        super().__init__(details, headers={"Upload-Offset": str(offset)})
        self.offset = offset


class Gone(FilestoreError, code="gone", status=410, title="Gone"):
    """It existed and will not come back: an expired upload or public token, a tombstoned file."""


class PreconditionFailed(FilestoreError, code="precondition_failed", status=412, title="Precondition Failed"):
    """A conditional header does not hold."""


class PayloadTooLarge(FilestoreError, code="payload_too_large", status=413, title="Payload Too Large"):
    """A body beyond its limit: JSON over 1 MiB, upload beyond the declared size, bucket quota."""


class UriTooLong(FilestoreError, code="uri_too_long", status=414, title="URI Too Long"):
    """The target of the request has more bytes than are read."""


class UnsupportedMediaType(
    FilestoreError, code="unsupported_media_type", status=415, title="Unsupported Media Type"
):
    """A content type or content encoding that is not accepted here."""


class RangeNotSatisfiable(
    FilestoreError, code="range_not_satisfiable", status=416, title="Range Not Satisfiable"
):
    """No requested range overlaps the content (RFC 9110, section 15.5.17)."""

    def __init__(self, details: str, *, size_bytes: int) -> None:
        super().__init__(details, headers={"Content-Range": f"bytes */{size_bytes}"})


class UploadLocked(FilestoreError, code="upload_locked", status=423, title="Upload Locked"):
    """Another request is writing this upload now."""


class RateLimited(FilestoreError, code="rate_limited", status=429, title="Too Many Requests"):
    """Too many failures or requests from this address; `Retry-After` says how long to wait."""

    def __init__(self, details: str, *, retry_after_s: int = 1) -> None:
        super().__init__(details, headers={"Retry-After": str(retry_after_s)})


class ChecksumMismatch(FilestoreError, code="checksum_mismatch", status=460, title="Checksum Mismatch"):
    """The bytes are not those that the caller declared; nothing of them is kept."""


class Internal(FilestoreError, code="internal", status=500, title="Internal Server Error"):
    """A fault of ours; `details` holds the request id, never a traceback."""


class NotImplementedHere(FilestoreError, code="not_implemented", status=501, title="Not Implemented"):
    """A method, or a transfer coding, that no resource of this service knows."""


class Unavailable(FilestoreError, code="unavailable", status=503, title="Service Unavailable"):
    """No quorum, or too few healthy replicas; the same request may succeed after `Retry-After`."""

    def __init__(self, details: str, *, retry_after_s: int = 1) -> None:
        super().__init__(details, headers={"Retry-After": str(retry_after_s)})


class InsufficientStorage(
    FilestoreError, code="insufficient_storage", status=507, title="Insufficient Storage"
):
    """No node has room."""
