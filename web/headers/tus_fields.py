"""The header fields of tus 1.0.0: versions, sizes, metadata. Pure.

The protocol: https://tus.io/protocols/resumable-upload.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from ca.errors import FilestoreError, InvalidRequest, PayloadTooLarge, PreconditionFailed
from runtime.bounds import PARTS_MAX
from web.headers.conditions import field_of
from web.headers.digests import TUS_ALGORITHMS
from web.headers.ranges import SIZE_BYTES_MAX

VERSION: Final = "1.0.0"
WITH_UPLOAD: Final = "creation-with-upload"
EXTENSIONS: Final = (
    f"checksum,concatenation,creation,creation-defer-length,{WITH_UPLOAD},expiration,termination"
)
PATCH_TYPE: Final = "application/offset+octet-stream"
PREFIX_DIGEST: Final = "Upload-Prefix-Digest"  # ours: the SHA-256 of the first Upload-Offset bytes
RESUMABLE: Final = {"Tus-Resumable": VERSION}
PARTIAL_CONCAT: Final = "partial"
_FINAL: Final = "final;"
_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UPLOAD: Final = re.compile(rf"(?:/[\w.~%-]+)*/api/v1/files/({_UUID})/content", re.ASCII | re.IGNORECASE)
_DIGITS_MAX: Final = 16  # SIZE_BYTES_MAX has as many


def capability_headers(allow: str, *, takes_bytes: bool = True) -> dict[str, str]:
    """Return the headers that describe the supported tus protocol for these methods (tus core, OPTIONS)."""
    extensions = [name for name in EXTENSIONS.split(",") if takes_bytes or name != WITH_UPLOAD]
    return RESUMABLE | {
        "Tus-Version": VERSION,
        "Tus-Extension": ",".join(extensions),
        "Tus-Max-Size": str(SIZE_BYTES_MAX),
        "Tus-Checksum-Algorithm": ",".join(TUS_ALGORITHMS),
        "Allow": allow,
    }


@contextmanager
def versioned() -> Iterator[None]:
    """Errors carry the protocol version too (tus core, Tus-Resumable)."""
    try:
        yield
    except FilestoreError as error:
        error.headers |= RESUMABLE
        raise


def require_version(headers: Mapping[str, str]) -> None:
    """Every tus request names its version (tus core, Tus-Resumable). Raises PreconditionFailed."""
    if headers.get("Tus-Resumable") != VERSION:
        raise PreconditionFailed(f"Tus-Resumable: must be {VERSION}.", headers={"Tus-Version": VERSION})


def size_field(headers: Mapping[str, str], name: str) -> int:
    """A number of bytes. Raises InvalidRequest naming the header."""
    digits = field_of(headers, name) or ""
    if not (_is_decimal(digits) and len(digits) <= _DIGITS_MAX):
        raise InvalidRequest(f"{name}: must be a whole number of bytes.")
    size_bytes = int(digits)
    if size_bytes > SIZE_BYTES_MAX:
        raise InvalidRequest(f"{name}: must be at most {SIZE_BYTES_MAX}.")
    return size_bytes


def declared_length(headers: Mapping[str, str]) -> int | None:
    """The size that a creation declares; None where it says that this comes later (creation-defer-length).

    Raises InvalidRequest naming the header, PayloadTooLarge.
    """
    deferred, digits = field_of(headers, "Upload-Defer-Length"), field_of(headers, "Upload-Length")
    if deferred is not None and deferred != "1":
        raise InvalidRequest("Upload-Defer-Length: must be 1.")
    if (deferred is None) == (digits is None):
        raise InvalidRequest("Upload-Length: is required, unless Upload-Defer-Length: 1 is sent.")
    if digits is None:
        return None
    if _is_decimal(digits) and int(digits[: _DIGITS_MAX + 1]) > SIZE_BYTES_MAX:
        raise PayloadTooLarge(f"Upload-Length: must be at most {SIZE_BYTES_MAX} bytes.")
    return size_field(headers, "Upload-Length")


def parts_field(headers: Mapping[str, str]) -> list[str] | None:
    """The partial uploads that Upload-Concat has a final one put together from, in order.

    It is [] for a partial upload itself, None for an upload that is neither. Only the path of an address
    counts: any node may be named, or a proxy before it. Raises InvalidRequest naming the header.
    """
    field = field_of(headers, "Upload-Concat")
    if field is None:
        return None
    if field == PARTIAL_CONCAT:
        return []
    addresses = field.removeprefix(_FINAL).split() if field.startswith(_FINAL) else []
    if not 1 <= len(addresses) <= PARTS_MAX:
        raise InvalidRequest(
            f"Upload-Concat: must be `partial`, or `final;` followed by 1 to {PARTS_MAX} addresses of "
            "partial uploads."
        )
    parts = [_upload_at(address) for address in addresses]
    if len(set(parts)) != len(parts):
        raise InvalidRequest("Upload-Concat: lists a partial upload more than once.")
    return parts


def final_concat(parts: Sequence[str]) -> str:
    """The Upload-Concat of a final upload."""
    return _FINAL + " ".join(f"/api/v1/files/{file_uuid}/content" for file_uuid in parts)


def parse_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """The texts of Upload-Metadata by their keys: `key BASE64` pairs between commas, a value may be left out.

    Raises InvalidRequest for what is malformed, for a key that comes twice, for a value that is not UTF-8.
    """
    field, found = (field_of(headers, "Upload-Metadata") or "").strip(" \t"), dict[str, str]()
    for pair in field.split(",") if field else ():
        key, _, encoded = pair.strip(" \t").partition(" ")
        if not key:
            raise InvalidRequest("Upload-Metadata: expected `key BASE64` pairs, separated by commas.")
        if key in found:
            raise InvalidRequest(f"Upload-Metadata: {key[:64]} appears more than once.")
        found[key] = _text(key, encoded)
    return found


def _upload_at(address: str) -> str:
    try:
        found = _UPLOAD.fullmatch(urlsplit(address).path)
    except ValueError:
        found = None
    if found is None:
        raise InvalidRequest("Upload-Concat: expected addresses of uploads as returned in Location.")
    return found[1].lower()


def _text(key: str, encoded: str) -> str:
    try:
        # Some clients leave the padding out.
        padded = encoded.rstrip("=") + "=" * (-len(encoded.rstrip("=")) % 4)
        return base64.b64decode(padded.encode("ascii"), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeError):
        raise InvalidRequest(f"Upload-Metadata: {key[:64]}: expected text in UTF-8, in base64.") from None


def _is_decimal(digits: str) -> bool:
    return digits.isascii() and digits.isdecimal()
