"""Certificates as an operator has them made for browsers: two files, signed by themselves."""

import ipaddress
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ca.webcertificate import WebCertificateFiles

DAY = timedelta(days=1)


def write_pair(
    directory: Path,
    names: Sequence[str] = ("files.example.org",),
    *,
    addresses: Sequence[str] = (),
    begins_in: timedelta = -DAY,
    ends_in: timedelta = DAY,
    password: bytes = b"",
) -> WebCertificateFiles:
    """A new key with a certificate of these names, in place of an older pair."""
    directory.mkdir(exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    serial = x509.random_serial_number()  # in its name too: of two of one name only one would be trusted
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{serial:x}")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now + begins_in)
        .not_valid_after(now + ends_in)
    )
    told = [*map(x509.DNSName, names), *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses)]
    if told:
        builder = builder.add_extension(x509.SubjectAlternativeName(told), critical=False)
    locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files = WebCertificateFiles(directory / "web.pem", directory / "web.key")
    files.certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    files.key.write_bytes(key.private_bytes(pem, form, locked))
    files.key.chmod(0o600)
    return files


def trusting(certificates: Path) -> ssl.SSLContext:
    """That of a browser that trusts the certificates in a file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates)
    return context
