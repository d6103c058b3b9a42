"""Digests that a request declares for its body. Pure.

They are those of RFC 9530, the older Digest of RFC 3230, Content-MD5, and the tus checksum. Of the fields of
RFC 9530 only sha-256 is compared. A field with only other algorithms is ignored, as its section 2 allows. A
tus checksum by an algorithm that is not offered is rejected. So is the announcement of a digest after the
body, as trailers are not read.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ca.errors import ChecksumMismatch, InvalidRequest
from web.headers.conditions import field_of

# RFC 9530: a dictionary of byte sequences, whose parameters mean nothing to us (RFC 8941, section 3.1.2).
_STRUCTURED = re.compile(r"sha-256=:([A-Za-z0-9+/=]{1,64}):(?:;[ -~]*)?")
_PLAIN = re.compile(r"sha-256=([A-Za-z0-9+/=]{1,64})", re.IGNORECASE)  # RFC 3230: a list of name=base64
DIGEST_FIELDS = ("Repr-Digest", "Digest")  # of the whole content
PIECE_FIELD = "Content-Digest"  # of the bytes in this request
MD5_FIELD = "Content-MD5"  # also of this request's bytes (RFC 1864); sent by older clients
TUS_FIELD = "Upload-Checksum"  # also of this request's bytes, for a PATCH
TUS_ALGORITHMS = ("sha256", "sha1", "md5")  # as hashlib names them too


class WrongContent(ChecksumMismatch):
    """All of the content has come, and it is not what was declared: nothing of it is right for certain."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The digest that the bytes of a request must have. `field` is the header that declares it."""

    field: str
    algorithm: str
    digest: bytes

    def new(self) -> "hashlib._Hash":
        """A hash to compare with."""
        return hashlib.new(self.algorithm, usedforsecurity=False)

    def require(self, found: "hashlib._Hash") -> None:
        """Raises ChecksumMismatch unless the bytes that `found` has seen are those."""
        if found.digest() != self.digest:
            raise ChecksumMismatch(
                f"{self.field}: does not match the bytes received, whose "
                f"{self.algorithm} is {found.hexdigest()}."
            )


def agreed_sha256(*declared: str, found: str | None = None) -> str:
    """Return the sha256 (hex) that all declarations agree on, or "" if none is given; each may be "".

    `found` is the digest of the content once all of it has arrived; it is then returned.

    Raises ChecksumMismatch for digests that contradict each other, WrongContent if `found` differs.
    """
    agreed = {digest for digest in declared if digest}
    if len(agreed) > 1:
        raise ChecksumMismatch("The digests declared for this content contradict each other.")
    if found is None:
        return "".join(agreed)
    if agreed - {found}:
        raise WrongContent(f"The content has SHA-256 {found}, but {agreed.pop()} was declared.")
    return found


def require_before_body(headers: Mapping[str, str]) -> None:
    """Raises InvalidRequest where a digest is announced for behind the body."""
    trailers = {name.strip(" \t").lower() for name in (field_of(headers, "Trailer") or "").split(",")}
    for name in (*DIGEST_FIELDS, PIECE_FIELD, MD5_FIELD, TUS_FIELD):
        if name.lower() in trailers:
            raise InvalidRequest(f"{name}: must be sent before the body; trailers are not read.")


def whole_digest(headers: Mapping[str, str]) -> str:
    """The sha256 (hex) declared for the whole content, "" when none is.

    Raises InvalidRequest naming the field.
    """
    found = {digest for name in DIGEST_FIELDS if (digest := _digest(headers, name))}
    if len(found) > 1:
        raise InvalidRequest("Repr-Digest: does not match the sha-256 in Digest.")
    return found.pop() if found else ""


def piece_digest(headers: Mapping[str, str]) -> str:
    """The sha256 (hex) declared for the bytes of this request, "" when none is. Raises InvalidRequest."""
    return _digest(headers, PIECE_FIELD)


def piece_checksums(headers: Mapping[str, str]) -> tuple[Checksum, ...]:
    """Everything that is declared for the bytes of this request. Raises InvalidRequest naming the field."""
    found = []
    if sha256 := piece_digest(headers):
        found.append(Checksum(PIECE_FIELD, "sha256", bytes.fromhex(sha256)))
    found += md5_checksums(headers)
    if (value := field_of(headers, TUS_FIELD)) is not None:
        found.append(tus_checksum(value))
    return tuple(found)


def md5_checksums(headers: Mapping[str, str]) -> tuple[Checksum, ...]:
    """The MD5 that is declared for the bytes of this request, if there is one. Raises InvalidRequest."""
    value = field_of(headers, MD5_FIELD)
    if value is None:
        return ()
    return (Checksum(MD5_FIELD, "md5", _decoded(MD5_FIELD, "md5", value.strip(" \t"))),)


def tus_checksum(value: str) -> Checksum:
    """An Upload-Checksum, `ALGORITHM BASE64` (tus checksum extension). Raises InvalidRequest."""
    algorithm, _, encoded = value.partition(" ")
    if algorithm not in TUS_ALGORITHMS:
        raise InvalidRequest(f"{TUS_FIELD}: the algorithm must be one of {', '.join(TUS_ALGORITHMS)}.")
    return Checksum(TUS_FIELD, algorithm, _decoded(TUS_FIELD, algorithm, encoded))


def repr_digest(sha256: str) -> str:
    """The value of Repr-Digest for content with this sha256 (hex)."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode('ascii')}:"


def _decoded(field: str, algorithm: str, encoded: str) -> bytes:
    """The bytes that a field encodes in base64. Raises InvalidRequest naming the field."""
    digest_bytes = hashlib.new(algorithm, usedforsecurity=False).digest_size
    try:
        digest = base64.b64decode(encoded, validate=True)
    except ValueError:  # not ASCII, or not base64
        digest = b""
    if len(digest) != digest_bytes:
        raise InvalidRequest(f"{field}: must be a {algorithm} of {digest_bytes} bytes in base64.")
    return digest


def _digest(headers: Mapping[str, str], name: str) -> str:
    value = field_of(headers, name) or ""
    if "sha-256" not in value.lower():
        return ""
    pattern = _PLAIN if name == "Digest" else _STRUCTURED
    members = [member.strip(" \t") for member in value.split(",")]
    matches = [match for member in members if (match := pattern.fullmatch(member))]
    try:
        digests = {base64.b64decode(match[1], validate=True) for match in matches}
    except binascii.Error:
        digests = set()
    if len(digests) != 1 or len(digest := digests.pop()) != 32:
        raise InvalidRequest(f"{name}: must be one sha-256 of 32 bytes in base64.")
    return digest.hex()
