"""Attempts and renewals, which clients keep sealed between two calls. Apart from `flows`: only their form.

So no coordinator remembers who is signing in, and another one may lead when the person returns. The seal is
made with the cluster key (AES-256-GCM) and the purpose: an attempt is no renewal, and its holder can neither
read nor alter it.

Tested by tests/unit/coordinator/sign_in/test_flows.py.
"""

import base64
import binascii
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from ca.errors import InvalidRequest
from ca.keys import WrongClusterKey
from coordinator.admin.authority import SigningAuthority

T = TypeVar("T", bound=Struct)


class SealedAttempt(Struct, frozen=True, array_like=True):
    """A sign-in that has begun. `redirect_uri` is "" and `device_code` set in the device flow.

    `label` is for the session.
    """

    provider: str
    issuer: str
    client_id: str
    redirect_uri: str
    state: str
    nonce: str
    verifier: str
    device_code: str
    expires_at_ms: int
    label: str


class SealedRenewal(Struct, frozen=True, array_like=True):
    """A sign-in that can be renewed, unless the user was revoked (`generation`) or has ended the session."""

    provider: str
    issuer: str
    client_id: str
    subject: str
    user_id: str
    generation: int
    session_id: str
    refresh_token: str


_PURPOSES: Final = {SealedAttempt: "sign-in attempt", SealedRenewal: "sign-in renewal"}


def seal(sealer: SigningAuthority, what: SealedAttempt | SealedRenewal) -> str:
    """Return it as text that only a coordinator of this cluster can read."""
    sealed = sealer.seal(msgspec.msgpack.encode(what), purpose=_PURPOSES[type(what)])
    return base64.urlsafe_b64encode(sealed).decode("ascii")


def unseal(sealer: SigningAuthority, text: str, kind: type[T]) -> T:
    """Return what was sealed. Raises InvalidRequest for every other text."""
    try:
        sealed = base64.urlsafe_b64decode(text.encode("ascii"))
        return msgspec.msgpack.decode(sealer.unseal(sealed, purpose=_PURPOSES[kind]), type=kind)
    except (binascii.Error, ValueError, WrongClusterKey, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"This is no {_PURPOSES[kind]} of this cluster. Sign in again.") from error
