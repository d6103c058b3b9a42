"""TLS contexts for every port and caller, certificates that change under a listener, and who the peer is.

Every context that verifies sets VERIFY_X509_STRICT itself (create_default_context does from Python 3.13
only), trusts only the root it is handed, and never looks at SSL_CERT_FILE or the system's store.
"""

import asyncio
import functools
import ipaddress
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ca.certificates import (
    LATE_RENEWAL_MS,
    Renewal,
    UntrustedCertificate,
    certificates_in,
    check_signed,
    is_for,
    renewal_of,
    serial_hex,
    validity_ms,
)
from ca.errors import Internal, Unauthorized
from ca.hostnames import is_identity_name
from ca.identity import X509_FAILURES, Identity, Role
from ca.keys import UnreadableKey, key_from_pem, key_to_pem
from ca.secretfiles import write_secret

_ALPN: Final = ["http/1.1"]
# Forward secrecy and authenticated encryption only (RFC 9325, 4.2); TLS 1.3 has nothing else anyway.
_TLS12_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
_PEERS_REMEMBERED_MAX: Final = 1024
_NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME, which Python has no name for

_ADVICE: Final = (
    "Restore it from a backup, or compare ca.pem in the same directory with that of another member. If "
    "both are lost, join a node again, or rebuild a coordinator."
)

_Tls = ssl.SSLObject | ssl.SSLSocket
_Connection = asyncio.BaseTransport | _Tls | None


class UnusableCredential(Internal):
    """A key, certificate or root bundle cannot be loaded; `details` names the file, never its content."""


def read_roots(path: Path) -> str:
    """The PEM text of the roots that a member trusts. Raises UnusableCredential, also where none is there."""
    try:
        certificates_in(pem := _text_of(path))
    except (OSError, UntrustedCertificate) as error:
        raise UnusableCredential(
            f"{path} cannot be used: {_reason_of(error)}. Copy it from another member; it is the same on all."
        ) from error
    return pem


def _text_of(path: Path) -> str:
    """Read a file as ASCII. Other bytes are replaced, so that they are not valid PEM. Raises OSError."""
    return path.read_text("ascii", "replace")


def _reason_of(error: Exception) -> str:
    return getattr(error, "details", "") or getattr(error, "strerror", "") or str(error)


def _is_written(address: object, text: str) -> bool:
    """Whether the text is one of the ways to write this address: of IPv6 there are many."""
    try:
        return ipaddress.ip_address(text) == address
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Credential:
    """How a process proves who it is: one PEM file (key, leaf, intermediate), and the roots it trusts."""

    path: Path
    root_pem: str

    def write(self, key: ec.EllipticCurvePrivateKey, chain_pem: str) -> None:
        """Replace key and chain in one rename, so that no reader ever sees a torn pair."""
        write_secret(self.path, key_to_pem(key) + chain_pem.encode("ascii"))

    def chain(self) -> list[x509.Certificate]:
        """The leaf and what signed it, from the disk. Raises OSError, UntrustedCertificate."""
        return certificates_in(_text_of(self.path))

    def renewal(self) -> Renewal:
        """When the leaf on disk is to be replaced, a little different each time. Raises as `chain` does."""
        return renewal_of(*validity_ms(self.chain()[0]), random.uniform(-1, 1))

    def require(self, identity: Identity) -> None:
        """Raise UnusableCredential unless the certificate on disk is this member's and can be used.

        It is rejected if it belongs to another member, is missing, does not match its key, or was not issued
        under the trusted root. With such a certificate every handshake would fail without an explanation. Its
        time is not checked.
        """
        try:
            chain = self.chain()
            named = Identity.from_certificate(chain[0])
            if not is_for(chain[0], key_from_pem(self.path.read_bytes())):
                raise UntrustedCertificate("the certificate does not belong to the key in the same directory")
            check_signed(chain, self.root_pem)
        except (OSError, UntrustedCertificate, Unauthorized, UnreadableKey) as error:
            raise UnusableCredential(f"{self.path} cannot be used: {_reason_of(error)}. {_ADVICE}") from error
        if named != identity:
            raise UnusableCredential(f"{self.path} is the certificate of {named.uri}, not of {identity.uri}")

    def require_address(self, address: str) -> None:
        """Raises UnusableCredential when the certificate on disk is for another address or name.

        It does not matter how the address is written.
        """
        names = self.chain()[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        addresses = names.get_values_for_type(x509.IPAddress)
        machines = [each for each in names.get_values_for_type(x509.DNSName) if not is_identity_name(each)]
        if address not in machines and not any(_is_written(each, address) for each in addresses):
            shown = ", ".join(map(str, addresses or machines))
            raise UnusableCredential(f"{self.path} is for the address {shown}, not for {address}")


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a mutual TLS connection. The caller checks the times on every request.

    `instance` is the process that it claims to be, or ""; the certificate does not prove that.
    """

    identity: Identity
    serial: str
    not_before_ms: int
    not_after_ms: int
    instance: str = ""

    def is_current(self, at_ms: int) -> bool:
        """Whether the certificate is valid at that time."""
        return self.not_before_ms <= at_ms < self.not_after_ms

    def may_renew(self, at_ms: int) -> bool:
        """Whether it is a node that may have a new certificate made although this one is not valid.

        Either the node was off while its certificate ended, or the certificate was signed by a clock that ran
        ahead.
        """
        is_near = self.not_before_ms - LATE_RENEWAL_MS <= at_ms < self.not_after_ms + LATE_RENEWAL_MS
        return is_near and self.identity.role is Role.NODE


def server_context(credential_path: Path, key_path: Path | None = None) -> ssl.SSLContext:
    """For the client port: TLS 1.2 or later, a server certificate, none asked of clients.

    `key_path`: of a certificate whose key does not lie in the same file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, ssl.TLSVersion.TLSv1_2)
    _load_credential(context, credential_path, key_path)
    return context


def peer_server_context(
    credential_path: Path, root_pem: str, *, takes_expired: bool = False
) -> ssl.SSLContext:
    """Return the context of the peer port: TLS 1.3 only, a certificate under our root is required.

    There are no session tickets: a resumed session outlives the certificate that it began with. With
    `takes_expired` the validity period of certificates is not checked: the code that asks for the `Peer` does
    that.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context, ssl.TLSVersion.TLSv1_3)
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    context.verify_mode = ssl.CERT_REQUIRED
    _trust_only(context, root_pem)
    if takes_expired:
        context.verify_flags |= _NO_CHECK_TIME
    _load_credential(context, credential_path)
    return context


def peer_client_context(credential_path: Path, root_pem: str) -> ssl.SSLContext:
    """For dialling a peer: by address, with `server_hostname=identity.dns_name`.

    TLS 1.3 only, our certificate shown.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, ssl.TLSVersion.TLSv1_3)
    _trust_only(context, root_pem)
    _load_credential(context, credential_path)
    return context


def client_context(root_pem: str) -> ssl.SSLContext:
    """For API clients and joiners: trusts the cluster's root, and nothing else on this machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, ssl.TLSVersion.TLSv1_2)
    _trust_only(context, root_pem)
    return context


def first_contact_context() -> ssl.SSLContext:
    """Return a context that verifies no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context, ssl.TLSVersion.TLSv1_2)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class ReloadingContext:
    """A listener's context whose certificate, key and trusted roots can be replaced while it listens.

    The listener keeps `listening`; each handshake is moved to the newest context by OpenSSL's server-name
    hook, which runs whether or not the client names a server. Protocol versions, the demand for a client
    certificate and session tickets stay those of `listening`, so the factory must not vary them.
    """

    def __init__(
        self,
        factory: Callable[[], ssl.SSLContext],
        by_name: Callable[[str], ssl.SSLContext | None] = lambda _name: None,
    ) -> None:
        """`by_name`: another context for clients that ask for a certain server; None for all others."""
        self._factory = factory
        self._by_name = by_name
        self.listening = factory()
        self._newest = self.listening
        self.listening.sni_callback = self._use_newest

    def reload(self) -> None:
        """Build a new context and use it from the next handshake on.

        On any error the old one stays and it raises.
        """
        newest = self._factory()
        assert newest.verify_mode == self.listening.verify_mode, "the factory varies the demand for a client"
        assert newest.minimum_version == self.listening.minimum_version, (
            "the factory varies the protocol version"
        )
        self._newest = newest

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        other = self._by_name(name) if name else None
        connection.context = self._newest if other is None else other


def peer_identity(connection: _Connection) -> Peer:
    """Return the identity, serial and end of the certificate that the handshake verified.

    `connection` is an asyncio transport (None if it is already closed) or a TLS object. Raises Unauthorized.
    """
    found = connection
    if connection is not None and not isinstance(connection, _Tls):
        # No isinstance of a transport: uvloop's are not derived from asyncio's.
        found = connection.get_extra_info("ssl_object")
    if not isinstance(found, _Tls):
        raise Unauthorized("the connection is closed or not TLS")
    try:
        der = found.getpeercert(binary_form=True)
    except ValueError as error:
        raise Unauthorized("the TLS handshake is not complete") from error
    if der is None:
        raise Unauthorized("the peer presented no certificate")
    return _peer(der)


@functools.lru_cache(maxsize=_PEERS_REMEMBERED_MAX)
def _peer(der: bytes) -> Peer:
    """Parsing costs more than the rest of a small request; certificates are few and never change."""
    identity = Identity.from_peer_cert_der(der)
    try:
        certificate = x509.load_der_x509_certificate(der)
        return Peer(identity, serial_hex(certificate), *validity_ms(certificate))
    except X509_FAILURES as error:
        raise Unauthorized("the peer's certificate cannot be read") from error


def _harden(context: ssl.SSLContext, minimum: ssl.TLSVersion) -> None:
    context.minimum_version = minimum
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_TLS12_CIPHERS)
    context.set_alpn_protocols(_ALPN)
    if context.protocol is ssl.PROTOCOL_TLS_CLIENT:
        context.hostname_checks_common_name = False  # the subject is never an identity here


def _trust_only(context: ssl.SSLContext, root_pem: str) -> None:
    """Trust these roots only. They are re-encoded, so that OpenSSL reads nothing else from the text."""
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    roots = certificates_in(root_pem)
    try:
        context.load_verify_locations(
            cadata=b"".join(root.public_bytes(serialization.Encoding.DER) for root in roots)
        )
    except ssl.SSLError as error:
        raise UnusableCredential(f"the root certificates cannot be used: {error.reason}") from error


def _load_credential(context: ssl.SSLContext, path: Path, key_path: Path | None = None) -> None:
    try:
        context.load_cert_chain(path, key_path, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UnusableCredential(
            f"{path} does not contain a usable key and its certificate: {reason}"
        ) from error


def _no_password() -> str:
    """Without this OpenSSL would ask the terminal, and a service would wait there for ever."""
    raise ValueError("the key is encrypted")
