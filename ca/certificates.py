"""The certificate authority: root, intermediate and leaf certificates, and a joiner's checks on its own.

Root (10 years, kept offline) -> intermediate (1 year, pathLen 0) -> leaf (7 days). ECDSA P-256 throughout;
every chain passes OpenSSL's VERIFY_X509_STRICT. RFC 5280. Time is an argument; no I/O here.
"""

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ca.errors import Internal, Unauthorized
from ca.hostnames import is_identity_name, is_literal, is_loopback_name
from ca.identity import X509_FAILURES, Identity, Role
from ca.keys import PublicKey, new_key, public_key_digest

LOCALHOST: Final = "localhost"
ROOT_LIFE: Final = timedelta(days=3653)
INTERMEDIATE_LIFE: Final = timedelta(days=365)
LEAF_LIFE: Final = timedelta(days=7)
LATE_RENEWAL_MS: Final = 90 * 24 * 3600 * 1000  # after its end: a laboratory may be switched off for a summer
BACK_DATE: Final = timedelta(minutes=5)  # a member's clock may be a little behind
_LEAF_LIFE_LEFT_MIN: Final = timedelta(minutes=10)  # else it would expire before its renewal ran
_BUNDLE_CHARS_MAX: Final = 64 * 1024
_BUNDLE_CERTIFICATES_MAX: Final = 16


class UntrustedCertificate(Internal):
    """Certificates that came from elsewhere are malformed, or not the ones that were expected."""


class IntermediateEnded(Internal):
    """The intermediate certificate signs nothing any more, or would within minutes."""


@dataclass(frozen=True, slots=True)
class LeafCertificate:
    """A signed leaf.

    `pem` is the leaf, then the intermediate; `serial` is lower-case hex without leading zeros.
    """

    pem: str
    serial: str
    not_before_ms: int
    not_after_ms: int
    public_key_digest: str


@dataclass(frozen=True, slots=True)
class Authority:
    """The signer of leaves: the intermediate with its key. `root_pem` is a bundle while roots change."""

    root_pem: str
    intermediate_pem: str
    intermediate_key: ec.EllipticCurvePrivateKey = field(repr=False)

    def sign_leaf(
        self, public_key: PublicKey, identity: Identity, address: str, *, now: datetime
    ) -> LeafCertificate:
        """A leaf for `identity`, serving on the address or name that `check_address` gave, for 7 days.

        Its life ends with the intermediate's at the latest. Raises IntermediateEnded.
        """
        issuer = certificates_in(self.intermediate_pem)[0]
        not_after = min(_whole_seconds(now) + LEAF_LIFE, issuer.not_valid_after_utc)
        if not_after - now < _LEAF_LIFE_LEFT_MIN:
            raise IntermediateEnded(
                "the intermediate certificate has expired: sign a new one with the root key"
            )
        certificate = (
            _builder(_leaf_subject(identity), issuer.subject, public_key, now, not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(_LEAF_PURPOSES, critical=False)
            .add_extension(_leaf_names(identity, address), critical=False)
            .add_extension(_authority_key_identifier(issuer), critical=False)
            .sign(self.intermediate_key, hashes.SHA256())
        )
        not_before_ms, not_after_ms = validity_ms(certificate)
        return LeafCertificate(
            pem=_pem(certificate) + _pem(issuer),
            serial=serial_hex(certificate),
            not_before_ms=not_before_ms,
            not_after_ms=not_after_ms,
            public_key_digest=public_key_digest(public_key),
        )


def new_root(cluster: str, *, now: datetime) -> tuple[str, ec.EllipticCurvePrivateKey]:
    """A self-signed root for `cluster`: its PEM, and the key, which leaves the coordinators after `init`."""
    key = new_key()
    name = _ca_subject(cluster, "Filestore root")
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    certificate = (
        _builder(name, name, key.public_key(), now, _whole_seconds(now) + ROOT_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), key


def new_intermediate(
    root_cert_pem: str, root_key: ec.EllipticCurvePrivateKey, cluster: str, *, now: datetime
) -> tuple[str, ec.EllipticCurvePrivateKey]:
    """An intermediate that may sign leaves and no further authority (pathLen 0): PEM and key.

    Raises UntrustedCertificate for the key of another root, and for a damaged root.
    """
    root = certificates_in(root_cert_pem)[0]
    if not is_for(root, root_key):
        raise UntrustedCertificate("the root key does not belong to this cluster's root certificate")
    key = new_key()
    subject = _ca_subject(cluster, "Filestore intermediate")
    try:
        not_after = min(_whole_seconds(now) + INTERMEDIATE_LIFE, root.not_valid_after_utc)
        certificate = (
            _builder(subject, root.subject, key.public_key(), now, not_after)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .add_extension(_authority_key_identifier(root), critical=False)
            .sign(root_key, hashes.SHA256())
        )
    except X509_FAILURES as error:
        raise UntrustedCertificate(f"the root certificate cannot sign: {error}") from error
    return _pem(certificate), key


def check_authority(authority: Authority, cluster: str, *, now: datetime) -> None:
    """Raises UntrustedCertificate unless leaves of this cluster that it signs now would be trusted."""
    found = certificates_in(authority.intermediate_pem)
    if len(found) != 1:
        raise UntrustedCertificate(f"expected one intermediate certificate, got {len(found)}")
    if not is_for(found[0], authority.intermediate_key):
        raise UntrustedCertificate("the intermediate certificate belongs to another key")
    key, identity = new_key(), Identity(cluster, Role.NODE, "check")
    try:
        constraints = found[0].extensions.get_extension_for_class(x509.BasicConstraints)
        leaf = authority.sign_leaf(key.public_key(), identity, "127.0.0.1", now=now)
    except (Internal, *X509_FAILURES) as error:
        raise UntrustedCertificate(f"the intermediate certificate cannot sign: {error}") from error
    if constraints.value.path_length != 0:
        raise UntrustedCertificate("the intermediate certificate is allowed to sign other authorities")
    check_leaf_matches(leaf.pem, key, authority.root_pem, identity=identity, now=now)


def certificates_in(pem: str) -> list[x509.Certificate]:
    """The certificates of a PEM text, 1..16, in order.

    Raises UntrustedCertificate when it is anything else.
    """
    if len(pem) > _BUNDLE_CHARS_MAX or not pem.isascii():
        raise UntrustedCertificate("the certificates are not PEM text of at most 64 KiB")
    try:
        certificates = x509.load_pem_x509_certificates(pem.encode("ascii"))
    except X509_FAILURES as error:
        raise UntrustedCertificate("the certificates are not PEM text") from error
    if len(certificates) > _BUNDLE_CERTIFICATES_MAX:
        raise UntrustedCertificate(f"there are more than {_BUNDLE_CERTIFICATES_MAX} certificates")
    return certificates


def is_for(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    """Return whether a certificate is for the public half of this key; False for unknown kinds of keys."""
    try:
        return certificate.public_key() == key.public_key()
    except X509_FAILURES:
        return False


def root_digest(root_pem: str) -> str:
    """SHA-256, in hex, of the root's DER: what a join token carries. Raises unless there is exactly one."""
    return hashlib.sha256(_only_certificate(root_pem).public_bytes(serialization.Encoding.DER)).hexdigest()


def trusted_root(root_pem: str, digest: str) -> str:
    """Return the PEM of the one certificate with this digest, re-encoded so that nothing else is included.

    The joiner's first contact (fetched unverified) goes through here. Raises UntrustedCertificate.
    """
    if root_digest(root_pem) != digest:
        raise UntrustedCertificate("the cluster's root certificate is not the one named in the join token")
    return _pem(_only_certificate(root_pem))


def check_leaf_matches(
    leaf_pem: str,
    key: ec.EllipticCurvePrivateKey,
    root_pem: str,
    *,
    identity: Identity | None = None,
    now: datetime | None = None,
) -> Identity:
    """Verify a leaf and return its identity: its chain must end in the root, and its key must be `key`.

    `identity`, when given, must be the one named; `now` defaults to the clock. Raises UntrustedCertificate.
    """
    leaf, *intermediates = certificates_in(leaf_pem)
    if not is_for(leaf, key):
        raise UntrustedCertificate("the certificate belongs to another key than this member's")
    _check_chain(leaf, intermediates, certificates_in(root_pem), now or datetime.now(UTC))
    try:
        named = Identity.from_certificate(leaf)
    except Unauthorized as error:
        raise UntrustedCertificate(error.reason) from error
    if identity is not None and named != identity:
        raise UntrustedCertificate(f"the certificate is for {named.uri}, not for {identity.uri}")
    return named


def check_signed(chain: Sequence[x509.Certificate], root_pem: str) -> None:
    """Raises UntrustedCertificate unless each certificate is signed by the next, and the last by a root.

    Looks at no time: one that has ended is as it was written, and may be renewed.
    """
    try:
        for certificate, issuer in pairwise(chain):
            certificate.verify_directly_issued_by(issuer)
        if not any(_is_issued_by(chain[-1], root) for root in certificates_in(root_pem)):
            raise UntrustedCertificate("the certificate was not issued under the cluster's root certificate")
    except (InvalidSignature, *X509_FAILURES) as error:
        raise UntrustedCertificate("the certificate's signature does not match: it is damaged") from error


def _is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *X509_FAILURES):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Renewal:
    """When a certificate is to be replaced, in ms since the epoch."""

    not_before_ms: int
    not_after_ms: int
    due_at_ms: int

    def is_due(self, at_ms: int) -> bool:
        """Return whether renewal is due. A certificate that is not valid yet is due: its clock ran ahead."""
        return at_ms >= self.due_at_ms or at_ms < self.not_before_ms


def renewal_of(not_before_ms: int, not_after_ms: int, jitter: float) -> Renewal:
    """Due at two thirds of the life, moved by `jitter` (-1..1) tenths of it."""
    assert not_before_ms < not_after_ms, "a certificate without a life"
    assert -1 <= jitter <= 1, "jitter out of range"
    life_ms = not_after_ms - not_before_ms
    due_at_ms = not_before_ms + life_ms * 2 // 3 + round(life_ms * jitter / 10)
    return Renewal(not_before_ms, not_after_ms, due_at_ms)


def serial_hex(certificate: x509.Certificate) -> str:
    """The serial number in lower-case hex, the form that replicated state denies certificates by."""
    return f"{certificate.serial_number:x}"


def validity_ms(certificate: x509.Certificate) -> tuple[int, int]:
    """Return the times before and after which a certificate is not valid, in ms since the epoch."""
    not_before, not_after = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return int(not_before.timestamp()) * 1000, int(not_after.timestamp()) * 1000


def _only_certificate(pem: str) -> x509.Certificate:
    certificates = certificates_in(pem)
    if len(certificates) != 1:
        raise UntrustedCertificate(f"expected one root certificate, got {len(certificates)}")
    return certificates[0]


def _check_chain(
    leaf: x509.Certificate,
    intermediates: list[x509.Certificate],
    roots: list[x509.Certificate],
    now: datetime,
) -> None:
    begins, ends = leaf.not_valid_before_utc, leaf.not_valid_after_utc
    if not begins <= now <= ends:
        life = f"from {_shown(begins)} to {_shown(ends)}"
        raise UntrustedCertificate(f"the certificate is valid {life}, and the clock here says {_shown(now)}")
    policy = verification.PolicyBuilder().store(verification.Store(roots)).time(now).max_chain_depth(2)
    try:
        policy.build_client_verifier().verify(leaf, intermediates)
    except (verification.VerificationError, *X509_FAILURES) as error:
        reason = str(error).split(" (encountered", 1)[0]  # behind it: how Python shows the object
        raise UntrustedCertificate(
            f"the certificate was not issued under the cluster's root certificate: {reason}"
        ) from error


def _shown(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


_LEAF_PURPOSES: Final = x509.ExtendedKeyUsage(
    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: PublicKey, now: datetime, not_after: datetime
) -> x509.CertificateBuilder:
    """Return the common part of all three kinds: names, serial, back-dated validity, key identifier."""
    assert isinstance(public_key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey), "public key not checked"
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_whole_seconds(now) - BACK_DATE)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _ca_subject(cluster: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, cluster),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _leaf_subject(identity: Identity) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.id)])


def _leaf_names(identity: Identity, address: str) -> x509.SubjectAlternativeName:
    """A member on loopback, which only development allows, is `localhost` as well."""
    assert not is_identity_name(address), "a machine with the name of a member"
    if is_literal(address):
        found = ipaddress.ip_address(address)
        addresses, names, is_local = [x509.IPAddress(found)], [], found.is_loopback
    else:
        addresses, names, is_local = [], [address], is_loopback_name(address)
    names = list(dict.fromkeys([identity.dns_name, *names, *([LOCALHOST] if is_local else [])]))
    return x509.SubjectAlternativeName(
        [
            x509.UniformResourceIdentifier(identity.uri),
            *(x509.DNSName(name) for name in names),
            *addresses,
        ]
    )


def _authority_key_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    issuer_key = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key)


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    """Authorities sign certificates and nothing else, leaves sign handshakes and nothing else."""
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _whole_seconds(now: datetime) -> datetime:
    assert now.tzinfo is not None, "a time without a zone"
    return now.astimezone(UTC).replace(microsecond=0)
