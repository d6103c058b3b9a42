"""The internal CA and the signer of user tokens, as a coordinator holds them.

Their keys are unwrapped from replicated state.

Tested by tests/unit/coordinator/admin/test_restore.py.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from ca import usertoken
from ca.certificates import (
    Authority,
    LeafCertificate,
    UntrustedCertificate,
    certificates_in,
    check_authority,
    is_for,
    new_intermediate,
)
from ca.errors import Internal, InvalidRequest
from ca.identity import Identity
from ca.keys import UnreadableKey, WrongClusterKey, key_from_pem, key_to_pem, unwrap, wrap
from ca.tls import Credential
from ca.usertoken import SigningKey
from coordinator.storage.state_store import Store
from runtime.clock import now_ms

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from ca.keys import PublicKey

INTERMEDIATE_PURPOSE = "intermediate"
USER_TOKEN_PURPOSE = "user_token"  # noqa: S105 (a purpose, not a password)
_DAMAGED = "state.sqlite is damaged: set this member up again with `filestore coordinator rebuild`."


class KeyDamaged(Internal):
    """A stored key is damaged; the process must not use it."""


class IntermediateCredential(NamedTuple):
    """The signer of leaves: its certificate, and its private key, encrypted with the cluster key."""

    pem: str
    wrapped: bytes


class TokenKey(NamedTuple):
    """The signer of user tokens; its private half is encrypted with the cluster key."""

    kid: str
    jwk: dict[str, str]
    wrapped: bytes


def make_intermediate(
    root_pem: str,
    root_key: "ec.EllipticCurvePrivateKey",
    cluster: str,
    cluster_key: bytes,
    *,
    now: datetime,
) -> IntermediateCredential:
    """Create an intermediate, signed with the root's key.

    Raises UntrustedCertificate for another root's key.
    """
    pem, key = new_intermediate(root_pem, root_key, cluster, now=now)
    return IntermediateCredential(pem, wrap(cluster_key, key_to_pem(key), purpose=INTERMEDIATE_PURPOSE))


def check_intermediate(
    intermediate: IntermediateCredential, *, root_pem: str, cluster: str, cluster_key: bytes, now: datetime
) -> None:
    """Raise InvalidRequest unless this cluster can sign with it from now on."""
    try:
        check_authority(decrypt_authority(intermediate, cluster_key, root_pem), cluster, now=now)
    except (UntrustedCertificate, UnreadableKey, WrongClusterKey) as error:
        raise InvalidRequest(f"intermediate: {error.details}") from error


class SigningAuthority:
    """Signs leaves and user tokens. The private keys are read when needed and kept nowhere else."""

    def __init__(
        self,
        store: Store,
        cluster_key: bytes,
        cluster: str,
        root_pem: str,
        *,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """Use the keys in the state. `clock_ms`: the time for signatures."""
        self._clock_ms = clock_ms
        self._store = store
        self._cluster_key = cluster_key
        self._cluster = cluster
        self.root_pem = root_pem

    def require_key(self) -> None:
        """Raise WrongClusterKey for the key of another cluster, KeyDamaged for a damaged key in the state.

        Otherwise either would show only when this member leads.
        """
        opened_by_purpose, failure = {}, None
        for purpose in (INTERMEDIATE_PURPOSE, USER_TOKEN_PURPOSE):
            try:
                opened_by_purpose[purpose] = unwrap(
                    self._cluster_key, self._stored(purpose)[2], purpose=purpose
                )
            except WrongClusterKey as error:
                failure = error
        if failure is not None and not opened_by_purpose:
            raise failure  # both keys fail: the key file is wrong
        if failure is not None:
            raise KeyDamaged(f"{failure.details}, which opens another one. {_DAMAGED}") from failure
        try:
            newest = Authority(
                self.root_pem, self._newest().pem, key_from_pem(opened_by_purpose[INTERMEDIATE_PURPOSE])
            )
            is_sound = is_for(certificates_in(newest.intermediate_pem)[0], newest.intermediate_key)
            kid, _, _ = self._stored(USER_TOKEN_PURPOSE)
            usertoken.public_jwk(SigningKey(kid, opened_by_purpose[USER_TOKEN_PURPOSE]))
        except (UntrustedCertificate, UnreadableKey) as error:
            raise KeyDamaged(f"A stored key is damaged: {error.details}. {_DAMAGED}") from error
        if not is_sound:
            raise KeyDamaged(
                f"The stored intermediate certificate does not belong to the stored key. {_DAMAGED}"
            )

    def _stored(self, purpose: str) -> tuple[str, str, bytes]:
        """Return the newest key with this purpose. Raises KeyDamaged unless it exists and is well formed."""
        try:
            return self._store.key(purpose)
        except (Internal, TypeError, ValueError) as error:
            raise KeyDamaged(f"The state has no {purpose} key. {_DAMAGED}") from error

    def sign_leaf(self, public_key: "PublicKey", identity: Identity, address: str) -> LeafCertificate:
        """Return a leaf for a member, signed by the newest intermediate."""
        authority = decrypt_authority(self._newest(), self._cluster_key, self.root_pem)
        return authority.sign_leaf(public_key, identity, address, now=self._now())

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock_ms() / 1000, UTC)

    def is_newer_than(self, credential: Credential) -> bool:
        """Return whether the newest intermediate begins after the signer of the certificate on disk."""
        try:
            signed_by = credential.chain()[1]
        except (OSError, IndexError, UntrustedCertificate):
            return False  # the renewal reports that when it is due
        newest = certificates_in(self._newest().pem)[0]
        return newest.not_valid_before_utc > signed_by.not_valid_before_utc

    def check_intermediate(self, intermediate: IntermediateCredential) -> None:
        """Raise InvalidRequest unless this cluster can sign with it from now on."""
        check_intermediate(
            intermediate,
            root_pem=self.root_pem,
            cluster=self._cluster,
            cluster_key=self._cluster_key,
            now=self._now(),
        )

    def new_token_key(self) -> TokenKey:
        """Return a new signing key for user tokens, wrapped as the present one is."""
        key = usertoken.new_signing_key()
        wrapped = wrap(self._cluster_key, key.private_pem, purpose=USER_TOKEN_PURPOSE)
        return TokenKey(key.kid, usertoken.public_jwk(key), wrapped)

    def _newest(self) -> IntermediateCredential:
        _, pem, wrapped = self._store.key(INTERMEDIATE_PURPOSE)
        return IntermediateCredential(pem, wrapped)

    def sign_user_token(
        self,
        *,
        subject: str,
        generation: int,
        roles: tuple[str, ...],
        groups: tuple[str, ...],
        at_ms: int,
        ttl_seconds: int,
        token_id: str,
    ) -> str:
        """Return a user token, signed by the newest key."""
        return usertoken.mint(
            self._token_key(),
            cluster=self._cluster,
            subject=subject,
            generation=generation,
            roles=roles,
            groups=groups,
            now_ms=at_ms,
            ttl_seconds=ttl_seconds,
            token_id=token_id,
        )

    def sign_ticket(
        self, *, subject: str, generation: int, file_uuid: str, at_ms: int, ttl_seconds: int
    ) -> str:
        """Return a ticket to one file, signed by the same key."""
        return usertoken.mint_ticket(
            self._token_key(),
            cluster=self._cluster,
            subject=subject,
            generation=generation,
            file_uuid=file_uuid,
            now_ms=at_ms,
            ttl_seconds=ttl_seconds,
        )

    def _token_key(self) -> SigningKey:
        kid, _, wrapped = self._store.key(USER_TOKEN_PURPOSE)
        return SigningKey(kid, unwrap(self._cluster_key, wrapped, purpose=USER_TOKEN_PURPOSE))


def decrypt_authority(intermediate: IntermediateCredential, cluster_key: bytes, root_pem: str) -> Authority:
    """Decrypt the key and return the signer. Raises WrongClusterKey, UnreadableKey."""
    pem = unwrap(cluster_key, intermediate.wrapped, purpose=INTERMEDIATE_PURPOSE)
    return Authority(root_pem, intermediate.pem, key_from_pem(pem))
