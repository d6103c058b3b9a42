"""Create certificate signing requests, and reject every request that asks for more than a key.

Only the public key of a request is used; names come from the authorised identity. If a request asks for
anything else, it is rejected with an error instead of ignoring the rest. (RFC 2986. cryptography checks none
of this: it calls RSA-512, DSA, P-224 and explicit curve parameters validly signed.) No I/O here.
"""

import base64
import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from ca.errors import InvalidRequest
from ca.hostnames import is_literal
from ca.identity import X509_FAILURES, Identity
from ca.keys import PublicKey as PublicKey

CSR_BYTES_MAX: Final = 16 * 1024
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 4096
_RSA_EXPONENT: Final = 65537
_HASHES: Final = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_PURPOSES: Final = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH})
_EXTENSION_REQUESTS: Final = frozenset(
    {
        ObjectIdentifier("1.2.840.113549.1.9.14"),
        ObjectIdentifier("1.3.6.1.4.1.311.2.1.14"),
    }  # PKCS #9, Microsoft
)
_LABEL: Final = r"(?:NEW )?CERTIFICATE REQUEST"
_PEM: Final = re.compile(
    rf"-----BEGIN (?P<label>{_LABEL})-----\r?\n"
    r"(?P<body>(?:[A-Za-z0-9+/=]{1,76}\r?\n)+)"
    r"-----END (?P=label)-----\s*"
)
_FAILURES: Final = (*X509_FAILURES, x509.AttributeNotFound)


def new_csr(key: ec.EllipticCurvePrivateKey, identity: Identity, address: str) -> str:
    """A request, in PEM, with the names that the certificate will carry."""
    names = x509.SubjectAlternativeName(
        [
            x509.UniformResourceIdentifier(identity.uri),
            x509.DNSName(identity.dns_name),
            general_name(address),
        ]
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.id)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    request = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode("ascii")


def general_name(address: str) -> x509.GeneralName:
    """How a certificate names an address, or the DNS name of a machine."""
    return x509.IPAddress(ipaddress.ip_address(address)) if is_literal(address) else x509.DNSName(address)


def check_csr(pem: object, identity: Identity, *, address: str | None = None) -> PublicKey:
    """Return the public key of a request that asks only for a certificate for `identity`.

    Addresses among its names, and names of machines, must be `address`; without one, addresses are not
    compared (they are never used anyway). The only error, for any input, is InvalidRequest, whose details
    begin "csr: ".
    """
    der = _der(pem)
    try:
        request = x509.load_der_x509_csr(der)
        # The key comes first: checking a signature by a key of absurd size would cost seconds.
        public_key = _accepted_key(request)
        _check_signature(request)
        _check_attributes(request)
        _check_subject(request.subject, identity)
        for extension in request.extensions:
            _check_extension(extension.value, identity, address)
    except InvalidRequest:
        raise
    except _FAILURES as error:
        raise _refused("it is not a well-formed PKCS #10 request") from error
    return public_key


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"csr: {reason}")


def _der(pem: object) -> bytes:
    """The bytes of the one PEM block that `pem` is."""
    if not isinstance(pem, str) or not pem:
        raise _refused("a certificate signing request in PEM format is required")
    if not pem.isascii() or len(pem) > CSR_BYTES_MAX:
        raise _refused(f"it must be ASCII text of at most {CSR_BYTES_MAX} bytes")
    match = _PEM.fullmatch(pem)
    if match is None:
        raise _refused("it must be one PEM block 'CERTIFICATE REQUEST' and nothing else")
    try:
        return base64.b64decode("".join(match["body"].split()), validate=True)
    except ValueError as error:
        raise _refused("the PEM block is not base64") from error


def _accepted_key(request: x509.CertificateSigningRequest) -> PublicKey:
    key = request.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        if not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
            raise _refused(f"an RSA key must have {RSA_BITS_MIN} to {RSA_BITS_MAX} bits, not {key.key_size}")
        if key.public_numbers().e != _RSA_EXPONENT:
            raise _refused(f"an RSA key must have the exponent {_RSA_EXPONENT}")
    elif isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
            raise _refused("an elliptic-curve key must be on P-256 or P-384")
    else:
        raise _refused("the key must be P-256, P-384 or RSA")
    plain = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if _public_key_info(request.tbs_certrequest_bytes) != plain:
        # Explicit curve parameters and RSA-PSS keys read as usual ones, and then other software disagrees.
        raise _refused(
            "the key must be in its usual encoding: a named curve with an uncompressed point, or plain RSA"
        )
    return key


def _public_key_info(request_info: bytes) -> bytes:
    """The SubjectPublicKeyInfo as it was sent: third in the CertificationRequestInfo (RFC 2986, 4.1)."""
    (_, content), *_ = _elements(request_info)
    _, _, (whole, _), *_ = _elements(content)
    return whole


def _elements(der: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each DER element in a row, with and without its header.

    The parser before us made sure that it is DER.
    """
    start = 0
    while start < len(der):
        length, header = der[start + 1], 2
        if length & 0x80:
            length_bytes = length & 0x7F
            header += length_bytes
            length = int.from_bytes(der[start + 2 : start + header], "big")
        end = start + header + length
        yield der[start:end], der[start + header : end]
        start = end


def _check_signature(request: x509.CertificateSigningRequest) -> None:
    if not isinstance(request.signature_hash_algorithm, _HASHES):
        raise _refused("it must be signed with SHA-256, SHA-384 or SHA-512")
    if not request.is_signature_valid:
        raise _refused("its signature was not made with the key in it")


def _check_attributes(request: x509.CertificateSigningRequest) -> None:
    """Reject any second list of extensions, as it would not be read."""
    if sum(1 for attribute in request.attributes if attribute.oid in _EXTENSION_REQUESTS) > 1:
        raise _refused("it contains more than one extension request")


def _check_subject(subject: x509.Name, identity: Identity) -> None:
    allowed = {identity.id, identity.dns_name, identity.uri}
    for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        if attribute.value not in allowed:
            raise _refused(f"its common name is not {identity.id}")


def _check_extension(value: x509.ExtensionType, identity: Identity, address: str | None) -> None:
    """Reject any extension that is not on the list of harmless ones."""
    if isinstance(value, x509.BasicConstraints):
        if value.ca:
            raise _refused("it asks for a CA certificate (CA:TRUE)")
    elif isinstance(value, x509.KeyUsage):
        if value.key_cert_sign or value.crl_sign:
            raise _refused("it asks for the key usage keyCertSign or cRLSign")
    elif isinstance(value, x509.ExtendedKeyUsage):
        if not _PURPOSES.issuperset(value):
            raise _refused("it asks for a purpose other than serverAuth and clientAuth")
    elif isinstance(value, x509.SubjectAlternativeName):
        for name in value:
            _check_name(name, identity, address)
    elif not isinstance(value, x509.SubjectKeyIdentifier):
        raise _refused(f"it asks for the extension {value.oid.dotted_string}, which is not allowed")


def _check_name(name: x509.GeneralName, identity: Identity, address: str | None) -> None:
    own = [x509.UniformResourceIdentifier(identity.uri), x509.DNSName(identity.dns_name)]
    if address is not None:
        own.append(general_name(address))
    if name in own or (isinstance(name, x509.IPAddress) and address is None):
        return
    if isinstance(name, x509.IPAddress):
        raise _refused(f"it asks for an address other than {address}")
    raise _refused(f"it asks for a name other than {identity.uri} and {identity.dns_name}")
