"""Digests that a request declares for its body (RFC 9530; the older Digest of RFC 3230). Pure.

Only sha-256 is compared; a field that names other algorithms alone is ignored, as RFC 9530, section 2 allows.
"""

import base64
import binascii
import re
from collections.abc import Mapping

from ca.errors import InvalidRequest

_STRUCTURED = re.compile(r"sha-256=:([A-Za-z0-9+/=]{1,64}):")  # RFC 9530: a dictionary of byte sequences
_PLAIN = re.compile(r"sha-256=([A-Za-z0-9+/=]{1,64})", re.IGNORECASE)  # RFC 3230: a list of name=base64
DIGEST_FIELDS = ("Repr-Digest", "Digest")  # of the whole content
PIECE_FIELD = "Content-Digest"  # of the bytes in this request


def whole_digest(headers: Mapping[str, str]) -> str:
    """The sha256 (hex) declared for the whole content, "" when none is.

    Raises InvalidRequest naming the field.
    """
    found = {digest for name in DIGEST_FIELDS if (digest := _digest(headers, name))}
    if len(found) > 1:
        raise InvalidRequest("Repr-Digest: names another sha-256 than Digest.")
    return found.pop() if found else ""


def piece_digest(headers: Mapping[str, str]) -> str:
    """The sha256 (hex) declared for the bytes of this request, "" when none is. Raises InvalidRequest."""
    return _digest(headers, PIECE_FIELD)


def repr_digest(sha256: str) -> str:
    """The value of Repr-Digest for content with this sha256 (hex)."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode('ascii')}:"


def _digest(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
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
        raise InvalidRequest(f"{name}: must hold one sha-256 of 32 bytes in base64.")
    return digest.hex()
