"""The TLS contexts of a member process, made anew when its certificate is."""

import logging
import ssl

from ca.errors import FilestoreError
from ca.identity import Identity
from ca.tls import (
    Credential,
    ReloadingContext,
    peer_client_context,
    peer_server_context,
    server_context,
)

_log = logging.getLogger(__name__)


class MemberContexts:
    """For the client port, the peer port, and for dialling peers and coordinators."""

    def __init__(self, credential: Credential, identity: Identity, *, takes_expired: bool = False) -> None:
        """`takes_expired`: on the peer port, where each certificate's time is looked at for itself.

        Raises UnusableCredential, also when the certificate is not that of `identity`.
        """
        self.credential = credential
        self._identity = identity
        self._client = self._client_context()
        self.api = ReloadingContext(lambda: server_context(credential.path))
        self.peer = ReloadingContext(
            lambda: peer_server_context(credential.path, credential.root_pem, takes_expired=takes_expired)
        )

    def client(self) -> ssl.SSLContext:
        """The newest context to dial with."""
        return self._client

    def reload(self) -> None:
        """Use the certificate that lies on disk now from the next handshake on.

        On an error the old one stays.
        """
        client = self._client_context()
        self.api.reload()
        self.peer.reload()
        self._client = client

    def _client_context(self) -> ssl.SSLContext:
        self.credential.require(self._identity)
        return peer_client_context(self.credential.path, self.credential.root_pem)


def use_certificate(contexts: MemberContexts) -> None:
    """Use the certificate that lies on disk; one that cannot be used changes nothing."""
    try:
        contexts.reload()
    except (FilestoreError, OSError, ValueError) as error:
        _log.error("the certificate on disk cannot be used", extra={"reason": str(error)})
    else:
        _log.info("using the certificate on disk")
