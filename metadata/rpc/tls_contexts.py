"""The TLS contexts of a member process, renewed with its certificate.

Tested by tests/unit/ca/test_webcertificate.py.
"""

import logging
import ssl

from cryptography import x509

from ca.errors import FilestoreError
from ca.identity import Identity
from ca.tls import (
    Credential,
    ReloadingContext,
    peer_client_context,
    peer_server_context,
    server_context,
)
from ca.webcertificate import UnusableWebCertificate, WebCertificate, WebCertificateFiles
from runtime.clock import now_ms
from runtime.timestamps import rfc3339

_log = logging.getLogger(__name__)


class MemberContexts:
    """For the client port, the peer port, and for dialling peers and coordinators."""

    def __init__(
        self,
        credential: Credential,
        identity: Identity,
        *,
        takes_expired: bool = False,
        web: WebCertificateFiles | None = None,
        needs_web: bool = True,
    ) -> None:
        """`takes_expired`: for the peer port, where the time of each certificate is checked separately.

        `web`: a certificate for browsers on the client port, in addition to the cluster's own; without
        `needs_web`, an unusable one is logged, and used as soon as it is valid. Raises UnusableCredential,
        also if the certificate is not for `identity`; UnusableWebCertificate.
        """
        self.credential = credential
        self._identity = identity
        self._client = self._client_context()
        self.web = None if web is None else WebCertificate(web, clock_ms=now_ms)
        if self.web is not None and needs_web:
            self.web.reload()
        elif self.web is not None:
            self._use_web_on_disk(self.web)
        self._own_names = self._names_of_leaf()
        self.api = ReloadingContext(lambda: server_context(credential.path), self._for_browsers)
        self.peer = ReloadingContext(
            lambda: peer_server_context(credential.path, credential.root_pem, takes_expired=takes_expired)
        )

    def client(self) -> ssl.SSLContext:
        """The newest context to dial with."""
        return self._client

    def reload(self) -> None:
        """Use the certificate on disk from the next handshake on.

        If that fails, the old one stays in use.
        """
        client = self._client_context()
        self.api.reload()
        self.peer.reload()
        self._client = client
        self._own_names = self._names_of_leaf()

    def reload_all(self) -> None:
        """Use both certificates as they are on disk now; one that cannot be used changes nothing but the log.

        The two have nothing to do with each other: each is used, or refused, for itself.
        """
        try:
            self.reload()
        except (FilestoreError, OSError, ValueError) as error:
            _log.error("cannot use the certificate on disk", extra={"reason": str(error)})
        else:
            _log.info("using the certificate on disk")
        if self.web is not None:
            self._use_web_on_disk(self.web)

    @staticmethod
    def _use_web_on_disk(web: WebCertificate) -> None:
        try:
            web.reload()
        except UnusableWebCertificate as error:
            facts = {"reason": error.details}
            _log.error("cannot use the new certificate for browsers: keeping the current one", extra=facts)
        else:
            told = {"ends_at": rfc3339(web.not_after_ms), "names": sorted(web.names)}
            _log.info("using the certificate for browsers on disk", extra=told)

    def _for_browsers(self, name: str) -> ssl.SSLContext | None:
        """None for a name of this member, whose certificate those get who trust the cluster's root."""
        if self.web is None or name.lower() in self._own_names:
            return None
        return self.web.context_for(name)

    def _names_of_leaf(self) -> frozenset[str]:
        leaf = self.credential.chain()[0]
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return frozenset(name.lower() for name in found.get_values_for_type(x509.DNSName))

    def _client_context(self) -> ssl.SSLContext:
        self.credential.require(self._identity)
        return peer_client_context(self.credential.path, self.credential.root_pem)
