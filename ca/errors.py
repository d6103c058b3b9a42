"""The one root of every error that this product raises on purpose, and the catalogue of codes users see.

A `code` never changes once shipped (`/api/v1` is a promise); `status` is the HTTP answer. Their fault and our
fault are different classes. The OpenAPI document and the README table are made from `CATALOGUE`.
"""

from typing import ClassVar


class FilestoreError(Exception):
    """The root of all errors. `details` says what was wrong with this request and what to do."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal Server Error"
    lasts: ClassVar[bool] = False  # a problem that every request meets until it is fixed

    def __init__(self, details: str, *, headers: dict[str, str] | None = None) -> None:
        super().__init__(details)
        self.details = details
        self.headers = headers or {}


class InvalidRequest(FilestoreError):
    """The request is malformed; `details` names the field."""

    code = "invalid_request"
    status = 400
    title = "Invalid Request"


class Unauthorized(FilestoreError):
    """No credential, or an invalid, expired or revoked one. The body does not tell the reason."""

    code = "unauthorized"
    status = 401
    title = "Unauthorized"

    def __init__(self, details: str = "", *, headers: dict[str, str] | None = None) -> None:
        super().__init__("A valid credential is required.", headers=headers)
        self.reason = details  # for the audit log only, never for the answer


class Forbidden(FilestoreError):
    """The caller is known, but lacks the permission."""

    code = "forbidden"
    status = 403
    title = "Forbidden"


class NotFound(FilestoreError):
    """No such record, or its file is deleted."""

    code = "not_found"
    status = 404
    title = "Not Found"


class MethodNotAllowed(FilestoreError):
    """The path exists; `Allow` lists what it answers to."""

    code = "method_not_allowed"
    status = 405
    title = "Method Not Allowed"


class NotAcceptable(FilestoreError):
    """The caller accepts nothing that this resource can be shown as."""

    code = "not_acceptable"
    status = 406
    title = "Not Acceptable"


class RequestTimeout(FilestoreError):
    """Headers or body came too slowly."""

    code = "request_timeout"
    status = 408
    title = "Request Timeout"


class Conflict(FilestoreError):
    """The record is in a state that forbids this: a name taken, something that is not empty."""

    code = "conflict"
    status = 409
    title = "Conflict"


class NotAvailable(FilestoreError):
    """Content was asked of a file that is not `available` yet."""

    code = "not_available"
    status = 409
    title = "Not Available"


class OffsetMismatch(FilestoreError):
    """The upload has another offset; the response contains it in `Upload-Offset`."""

    code = "offset_mismatch"
    status = 409
    title = "Offset Mismatch"

    def __init__(self, details: str, *, offset: int) -> None:
        super().__init__(details, headers={"Upload-Offset": str(offset)})
        self.offset = offset


class Gone(FilestoreError):
    """It existed and will not come back: an expired upload or public token, a tombstoned file."""

    code = "gone"
    status = 410
    title = "Gone"


class PreconditionFailed(FilestoreError):
    """A conditional header does not hold."""

    code = "precondition_failed"
    status = 412
    title = "Precondition Failed"


class PayloadTooLarge(FilestoreError):
    """A body beyond its limit: JSON over 1 MiB, upload beyond the declared size, bucket quota."""

    code = "payload_too_large"
    status = 413
    title = "Payload Too Large"


class UriTooLong(FilestoreError):
    """The target of the request has more bytes than are read."""

    code = "uri_too_long"
    status = 414
    title = "URI Too Long"


class UnsupportedMediaType(FilestoreError):
    """The content type or content encoding is not supported."""

    code = "unsupported_media_type"
    status = 415
    title = "Unsupported Media Type"


class RangeNotSatisfiable(FilestoreError):
    """No requested range overlaps the content (RFC 9110, section 15.5.17)."""

    code = "range_not_satisfiable"
    status = 416
    title = "Range Not Satisfiable"

    def __init__(self, details: str, *, size_bytes: int) -> None:
        super().__init__(details, headers={"Content-Range": f"bytes */{size_bytes}"})


class UploadLocked(FilestoreError):
    """Another request is writing this upload now."""

    code = "upload_locked"
    status = 423
    title = "Upload Locked"


class RateLimited(FilestoreError):
    """Too many failures or requests from this address; `Retry-After` says how long to wait."""

    code = "rate_limited"
    status = 429
    title = "Too Many Requests"

    def __init__(self, details: str, *, retry_after_s: int = 1) -> None:
        super().__init__(details, headers={"Retry-After": str(retry_after_s)})


class ChecksumMismatch(FilestoreError):
    """The bytes are not those that the caller declared; nothing of them is kept."""

    code = "checksum_mismatch"
    status = 460
    title = "Checksum Mismatch"


class Internal(FilestoreError):
    """A fault of ours; `details` holds the request id, never a traceback."""


class NotImplementedHere(FilestoreError):
    """A method, or a transfer coding, that no resource of this service knows."""

    code = "not_implemented"
    status = 501
    title = "Not Implemented"


class Unavailable(FilestoreError):
    """No quorum, or too few healthy replicas; the same request may succeed after `Retry-After`."""

    code = "unavailable"
    status = 503
    title = "Service Unavailable"

    def __init__(self, details: str, *, retry_after_s: int = 1) -> None:
        super().__init__(details, headers={"Retry-After": str(retry_after_s)})


class InsufficientStorage(FilestoreError):
    """No node has room."""

    code = "insufficient_storage"
    status = 507
    title = "Insufficient Storage"


CATALOGUE: tuple[type[FilestoreError], ...] = (
    InvalidRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    RequestTimeout,
    Conflict,
    NotAvailable,
    OffsetMismatch,
    Gone,
    PreconditionFailed,
    PayloadTooLarge,
    UriTooLong,
    UnsupportedMediaType,
    RangeNotSatisfiable,
    UploadLocked,
    RateLimited,
    ChecksumMismatch,
    Internal,
    NotImplementedHere,
    Unavailable,
    InsufficientStorage,
)
