"""Setup tokens: one machine of a cluster prints one, so that another may become a coordinator and a node.

`FSS1.<token id>.<secret>.<sha256 of the root's DER, hex>@<coordinator id>.<cluster>@<host>:<port>`: a join
token, with the coordinator to ask and its address. The new machine verifies that it is connected to that
coordinator, and to no other member, before it sends the secret.

The secret is derived from the cluster key and from the id, which contains its end. So only an owner of that
key can create a token, and a coordinator can recognize such a token before it sends the key on. Rights within
the API are not enough to create one, or to extend an expired one. No I/O here.
"""

import base64
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ca.errors import InvalidRequest
from ca.hostnames import authority_of
from ca.identity import Identity, Role, check_address, check_cluster_name, check_member_id, check_port
from ca.jointoken import JoinToken

VERSION: Final = "FSS1"
ID_PREFIX: Final = "setup-"  # of token ids, so that a list of join tokens shows which are of this kind
REPEAT_S: Final = 600  # after its end, for a machine that has begun with it
_ID: Final = re.compile(r"setup-(?P<ends_at_s>[0-9]{1,12})-[0-9a-f]{32}", re.ASCII)
_TEXT_CHARS_MAX: Final = 1024
_PLACE: Final = re.compile(
    r"(?:\[(?P<literal>[^\[\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})", re.ASCII
)
_KEY_BYTES: Final = 32
_PURPOSE: Final = b"filestore setup token"


@dataclass(frozen=True, slots=True)
class SetupToken:
    """One setup token. The secret is in neither repr nor errors."""

    join: JoinToken
    coordinator: Identity
    address: str
    api_port: int

    @property
    def url(self) -> str:
        """Return the URL of the coordinator."""
        return f"https://{self._place}"

    @property
    def text(self) -> str:
        """The whole token, as the operator carries it."""
        joined = self.join.text.partition(".")[2]
        return f"{VERSION}.{joined}@{self.coordinator.id}.{self.coordinator.cluster}@{self._place}"

    @property
    def _place(self) -> str:
        return authority_of(self.address, self.api_port)

    @staticmethod
    def parse(text: str) -> "SetupToken":
        """The token in `text`, white space around it aside.

        Raises InvalidRequest, which does not repeat it.
        """
        stripped = text.strip()
        parts = stripped.split("@") if len(stripped) <= _TEXT_CHARS_MAX else []
        version, _, joined = parts[0].partition(".") if parts else ("", "", "")
        if len(parts) != 3 or version != VERSION:
            raise InvalidRequest(
                f"join: expected a text that begins with {VERSION}., as printed by `filestore setup`"
            )
        try:
            join = JoinToken.parse(f"FST1.{joined}")
            coordinator_id, _, cluster = parts[1].partition(".")
            place = _PLACE.fullmatch(parts[2])
            if place is None:
                raise InvalidRequest("join: no place")
            return SetupToken(
                join,
                Identity(check_cluster_name(cluster), Role.COORDINATOR, check_member_id(coordinator_id)),
                check_address(place["literal"] or place["host"], development=True),
                check_port(int(place["port"])),
            )
        except InvalidRequest as error:
            raise InvalidRequest("join: it is damaged or incomplete. Copy the whole text again") from error


def new_setup_token(
    cluster_key: bytes, ca_digest: str, coordinator: Identity, address: str, api_port: int, *, ends_at_s: int
) -> SetupToken:
    """A fresh token for another machine, which will ask this coordinator there."""
    token_id = f"{ID_PREFIX}{ends_at_s}-{secrets.token_hex(16)}"
    join = JoinToken(token_id, _secret_of(cluster_key, token_id), ca_digest)
    return SetupToken(join, coordinator, address, api_port)


def is_of_cluster_key(cluster_key: bytes, token_id: str, secret: str, *, at_s: float) -> bool:
    """Return whether a token is valid and was made with the cluster key; in constant time."""
    match = _ID.fullmatch(token_id)
    if match is None or at_s >= int(match["ends_at_s"]) + REPEAT_S:
        return False
    return hmac.compare_digest(_secret_of(cluster_key, token_id).encode(), secret.encode())


def _secret_of(cluster_key: bytes, token_id: str) -> str:
    """The one secret of this token id, for who has the key (HKDF, RFC 5869; then HMAC-SHA256)."""
    key = HKDF(hashes.SHA256(), _KEY_BYTES, salt=None, info=_PURPOSE).derive(cluster_key)
    digest = hmac.digest(key, token_id.encode(), "sha256")
    return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")
