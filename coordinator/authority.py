"""The internal CA and the signer of user tokens, as a coordinator holds them: keys unwrapped from
replicated state.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ca import usertoken
from ca.certificates import Authority, LeafCertificate
from ca.identity import Identity
from ca.keys import key_from_pem, unwrap
from ca.usertoken import SigningKey
from coordinator.store import Store

if TYPE_CHECKING:
    from ca.keys import PublicKey

INTERMEDIATE_PURPOSE = "intermediate"
USER_TOKEN_PURPOSE = "user_token"  # noqa: S105 (a purpose, not a password)


class ClusterAuthority:
    """Signs leaves and user tokens. The private keys are read when needed and kept nowhere else."""

    def __init__(self, store: Store, cluster_key: bytes, cluster: str, root_pem: str) -> None:
        self._store = store
        self._cluster_key = cluster_key
        self._cluster = cluster
        self.root_pem = root_pem

    def require_key(self) -> None:
        """Raises WrongClusterKey for the key of another cluster: it would show when this member leads."""
        for purpose in (INTERMEDIATE_PURPOSE, USER_TOKEN_PURPOSE):
            unwrap(self._cluster_key, self._store.key(purpose)[2], purpose=purpose)

    def sign_leaf(self, public_key: "PublicKey", identity: Identity, address: str) -> LeafCertificate:
        """A leaf for a member, signed by the newest intermediate."""
        _, intermediate_pem, wrapped = self._store.key(INTERMEDIATE_PURPOSE)
        pem = unwrap(self._cluster_key, wrapped, purpose=INTERMEDIATE_PURPOSE)
        authority = Authority(self.root_pem, intermediate_pem, key_from_pem(pem))
        return authority.sign_leaf(public_key, identity, address, now=datetime.now(UTC))

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
        """A user token, signed by the newest key."""
        kid, _, wrapped = self._store.key(USER_TOKEN_PURPOSE)
        private_pem = unwrap(self._cluster_key, wrapped, purpose=USER_TOKEN_PURPOSE)
        return usertoken.mint(
            SigningKey(kid, private_pem),
            cluster=self._cluster,
            subject=subject,
            generation=generation,
            roles=roles,
            groups=groups,
            now_ms=at_ms,
            ttl_seconds=ttl_seconds,
            token_id=token_id,
        )
