"""Join tokens, which admit a machine. Shared by commands and API that mint them, and the node that joins.

`FST1.<token id>.<secret>.<sha256 of the root's DER, hex>`. The digest lets the joiner recognise the cluster
before the secret leaves it; the cluster keeps only the secret's SHA-256. No I/O here.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

import uuid_utils

from ca.errors import InvalidRequest, Unauthorized

VERSION: Final = "FST1"
_SECRET_BYTES: Final = 32
_TEXT_CHARS_MAX: Final = 256  # version, UUID, 43 characters of secret and 64 of digest make 149
_TOKEN_ID: Final = re.compile(r"[a-z0-9-]{1,64}")
_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 bytes, base64url without padding (RFC 4648, section 5)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class JoinToken:
    """One join token. The secret is in neither repr nor errors."""

    token_id: str
    secret: str = field(repr=False)
    ca_digest: str

    @property
    def text(self) -> str:
        """The whole token, as the operator carries it."""
        return f"{VERSION}.{self.token_id}.{self.secret}.{self.ca_digest}"

    @property
    def bearer(self) -> str:
        """Return the credential that the joiner sends once it trusts the root: `<token id>.<secret>`."""
        return f"{self.token_id}.{self.secret}"

    @staticmethod
    def parse(text: str) -> "JoinToken":
        """The token in `text`, white space around it aside.

        Raises InvalidRequest, which does not repeat it.
        """
        stripped = text.strip()
        parts = stripped.split(".") if len(stripped) <= _TEXT_CHARS_MAX else []
        if len(parts) != 4 or parts[0] != VERSION:
            raise InvalidRequest(f"join_token: expected a text of the form {VERSION}.<id>.<secret>.<digest>")
        _, token_id, secret, ca_digest = parts
        if not (_TOKEN_ID.fullmatch(token_id) and _SECRET.fullmatch(secret) and _DIGEST.fullmatch(ca_digest)):
            raise InvalidRequest("join_token: it is damaged or incomplete. Copy the whole token again")
        return JoinToken(token_id, secret, ca_digest)


def new_join_token(ca_digest: str) -> JoinToken:
    """A fresh token for the cluster whose root has this digest (64 hex digits)."""
    assert _DIGEST.fullmatch(ca_digest), "not a SHA-256 in hex"
    return JoinToken(str(uuid_utils.uuid7()), secrets.token_urlsafe(_SECRET_BYTES), ca_digest)


def is_token_id(text: str) -> bool:
    """Whether `text` could be the id of a token; a whole token, pasted by mistake, is not."""
    return _TOKEN_ID.fullmatch(text) is not None


def secret_digest(secret: str) -> str:
    """SHA-256 of the secret, in hex: the only form that is stored. Takes any text."""
    # Header values may decode to lone surrogates, which UTF-8 itself does not take.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def split_bearer(value: str) -> tuple[str, str]:
    """Token id and secret of what follows `Bearer `, be it `<id>.<secret>` or the whole token.

    Anything else, a user token for one, raises Unauthorized.
    """
    parts = value.split(".") if len(value) <= _TEXT_CHARS_MAX else []
    if len(parts) == 4 and parts[0] == VERSION and _DIGEST.fullmatch(parts[3]):
        parts = parts[1:3]
    if len(parts) != 2 or not _TOKEN_ID.fullmatch(parts[0]) or not _SECRET.fullmatch(parts[1]):
        raise Unauthorized("not a join token")
    return parts[0], parts[1]
