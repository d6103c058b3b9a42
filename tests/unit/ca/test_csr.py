"""Every rule on certificate signing requests: what is taken, what is refused, and nothing else raised."""

import base64
import contextlib
import ipaddress
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from ca.csr import CSR_BYTES_MAX, check_csr, new_csr
from ca.errors import InvalidRequest
from ca.identity import Identity, Role
from ca.keys import new_key, public_key_digest

ME = Identity("lab", Role.NODE, "n1")
ADDRESS = "10.0.0.1"
KEY = new_key()
GOOD = new_csr(KEY, ME, ADDRESS)
EXTENSION_REQUEST = "2a864886f70d01090e"  # 1.2.840.113549.1.9.14

Builder = x509.CertificateSigningRequestBuilder
Extend = Callable[[Builder], Builder]


def _name(*attributes: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])


def _csr(
    extend: Extend = lambda builder: builder, *, key: object = KEY, subject: x509.Name | None = None
) -> str:
    builder = Builder().subject_name(subject or _name())
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    request = extend(builder).sign(key, algorithm)  # type: ignore[arg-type]
    return request.public_bytes(serialization.Encoding.PEM).decode()


def _with(value: x509.ExtensionType) -> Extend:
    return lambda builder: builder.add_extension(value, critical=True)


def _names(*names: x509.GeneralName) -> Extend:
    return _with(x509.SubjectAlternativeName(names))


def _usage(**asked: bool) -> Extend:
    every = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign "
        "crl_sign encipher_only decipher_only"
    )
    return _with(x509.KeyUsage(**{name: asked.get(name, False) for name in every.split()}))


def _refused(pem: object, reason: str, *, address: str | None = ADDRESS) -> None:
    with pytest.raises(InvalidRequest, match=f"^csr: .*{reason}"):
        check_csr(pem, ME, address=address)


def _tlv(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    width = (length.bit_length() + 7) // 8
    return bytes([tag, 0x80 | width]) + length.to_bytes(width, "big") + content


def _hand_made(public_key_info: bytes, attributes: bytes = b"") -> str:
    """A validly signed request with parts that no library writes."""
    info = _tlv(0x30, b"\x02\x01\x00" + _tlv(0x30, b"") + public_key_info + _tlv(0xA0, attributes))
    algorithm = _tlv(0x30, bytes.fromhex("06082a8648ce3d040302"))  # ecdsa-with-SHA256
    signature = KEY.sign(info, ec.ECDSA(hashes.SHA256()))
    return _pem(_tlv(0x30, info + algorithm + _tlv(0x03, b"\x00" + signature)))


def _pem(der: bytes) -> str:
    body = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def test_own_request_yields_its_key() -> None:
    assert public_key_digest(check_csr(GOOD, ME, address=ADDRESS)) == public_key_digest(KEY.public_key())
    assert check_csr(GOOD, ME) == KEY.public_key()


@pytest.mark.parametrize(
    "key",
    [
        ec.generate_private_key(ec.SECP384R1()),
        rsa.generate_private_key(65537, 2048),
    ],
)
def test_p384_and_rsa_keys_are_taken(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    assert check_csr(_csr(key=key), ME) == key.public_key()


@pytest.mark.parametrize(
    "pem",
    [
        GOOD.replace("\n", "\r\n"),
        GOOD.rstrip(),
        GOOD + "\n\n",
        GOOD.replace("CERTIFICATE", "NEW CERTIFICATE"),
        _csr(subject=_name((NameOID.COMMON_NAME, "n1"), (NameOID.ORGANIZATION_NAME, "Widgits"))),
        _csr(subject=_name((NameOID.COMMON_NAME, ME.dns_name))),
        _csr(_with(x509.BasicConstraints(ca=False, path_length=None))),
        _csr(_usage(digital_signature=True, key_agreement=True, key_encipherment=True)),
        _csr(
            _with(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]))
        ),
        _csr(_with(x509.SubjectKeyIdentifier(b"12345678"))),
    ],
)
def test_harmless_requests_are_taken(pem: str) -> None:
    assert check_csr(pem, ME) == KEY.public_key()


@pytest.mark.parametrize("value", [None, 5, True, b"bytes", "", [], {}])
def test_what_is_no_text_is_refused(value: object) -> None:
    _refused(value, "required")


@pytest.mark.parametrize(
    "pem",
    [
        GOOD + GOOD,
        "Certificate Request:\n" + GOOD,
        GOOD + "trailing",
        " " + GOOD,
        GOOD.replace("REQUEST", "REQUESTS"),
        GOOD.replace("CERTIFICATE REQUEST", "CERTIFICATE"),
        GOOD.replace("END CERTIFICATE", "END NEW CERTIFICATE"),
        GOOD.replace("-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
        "garbage",
        "-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n",
    ],
)
def test_anything_but_one_pem_block_is_refused(pem: str) -> None:
    _refused(pem, "nothing else")


def test_too_large_and_non_ascii_texts_are_refused() -> None:
    _refused(GOOD + "\n" * CSR_BYTES_MAX, "16384")
    _refused(GOOD.replace("A", "А"), "ASCII")  # a Cyrillic one
    _refused(GOOD + "\udcff", "ASCII")


def test_bad_base64_and_bad_der_are_refused() -> None:
    _refused("-----BEGIN CERTIFICATE REQUEST-----\nAA=A\n-----END CERTIFICATE REQUEST-----\n", "base64")
    der = base64.b64decode("".join(GOOD.splitlines()[1:-1]))
    for bad in (der[:-1], der + b"\0", b"\x30\x80", b"\x30\x84\xff\xff\xff\xff", b"\0"):
        _refused(_pem(bad), "PKCS #10")


def test_signature_by_another_key_is_refused() -> None:
    der = bytearray(base64.b64decode("".join(GOOD.splitlines()[1:-1])))
    der[-1] ^= 1
    _refused(_pem(bytes(der)), "signature")
    _refused(_hand_made(_spki(new_key())), "signature")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (rsa.generate_private_key(65537, 1024), "bits"),
        (rsa.generate_private_key(3, 2048), "exponent"),
        (ec.generate_private_key(ec.SECP224R1()), "P-256"),
        (ec.generate_private_key(ec.SECP521R1()), "P-256"),
        (ec.generate_private_key(ec.SECP256K1()), "P-256"),
        (ed25519.Ed25519PrivateKey.generate(), "P-256, P-384 or RSA"),
        (dsa.generate_private_key(1024), "P-256, P-384 or RSA"),
    ],
)
def test_other_keys_are_refused(key: object, reason: str) -> None:
    _refused(_csr(key=key), reason)


def test_oversized_rsa_key_is_refused_before_its_signature_is_computed() -> None:
    numbers = rsa.RSAPublicNumbers(65537, (1 << 4100) | 1)
    spki = numbers.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _refused(_hand_made(spki), "4096 bits, not 4101")


def test_explicit_curve_parameters_are_refused() -> None:
    prime = 2**256 - 2**224 + 2**192 + 2**96 - 1
    b = bytes.fromhex("5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b")
    generator = bytes.fromhex(
        "046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"
        "4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"
    )
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    field = _tlv(0x30, bytes.fromhex("06072a8648ce3d0101") + _tlv(0x02, b"\0" + prime.to_bytes(32, "big")))
    curve = _tlv(0x30, _tlv(0x04, (prime - 3).to_bytes(32, "big")) + _tlv(0x04, b))
    tail = _tlv(0x04, generator) + _tlv(0x02, b"\0" + order.to_bytes(32, "big")) + b"\x02\x01\x01"
    parameters = _tlv(0x30, b"\x02\x01\x01" + field + curve + tail)
    point = KEY.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    algorithm = _tlv(0x30, bytes.fromhex("06072a8648ce3d0201") + parameters)
    _refused(_hand_made(_tlv(0x30, algorithm + _tlv(0x03, b"\0" + point))), "")
    assert (
        check_csr(_hand_made(_spki(KEY)), ME) == KEY.public_key()
    )  # the same hand with a named curve passes


def test_compressed_point_is_refused() -> None:
    point = KEY.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )
    algorithm = _tlv(0x30, bytes.fromhex("06072a8648ce3d020106082a8648ce3d030107"))
    _refused(_hand_made(_tlv(0x30, algorithm + _tlv(0x03, b"\0" + point))), "usual encoding")


def test_weak_signature_hash_is_refused() -> None:
    pem = Builder().subject_name(_name()).sign(KEY, hashes.SHA224()).public_bytes(serialization.Encoding.PEM)
    _refused(pem.decode(), "SHA-256")


def test_rsa_pss_signature_is_taken() -> None:
    key = rsa.generate_private_key(65537, 2048)
    pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
    request = Builder().subject_name(_name()).sign(key, hashes.SHA256(), rsa_padding=pss)
    assert check_csr(request.public_bytes(serialization.Encoding.PEM).decode(), ME) == key.public_key()


OTHER = Identity("lab", Role.NODE, "n2")
# Netscape's certificate type can ask for an authority too.
NETSCAPE_CA = x509.UnrecognizedExtension(x509.ObjectIdentifier("2.16.840.1.113730.1.1"), b"\x03\x02\x00\x04")


@pytest.mark.parametrize(
    ("pem", "reason"),
    [
        (_csr(_with(x509.BasicConstraints(ca=True, path_length=None))), "CA:TRUE"),
        (_csr(_usage(key_cert_sign=True)), "keyCertSign"),
        (_csr(_usage(crl_sign=True)), "keyCertSign or cRLSign"),
        (_csr(_with(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]))), "purpose"),
        (_csr(_with(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]))), "purpose"),
        (_csr(_names(x509.UniformResourceIdentifier(OTHER.uri))), "name other"),
        (_csr(_names(x509.UniformResourceIdentifier("spiffe://lab/coordinator/n1"))), "name other"),
        (_csr(_names(x509.UniformResourceIdentifier("spiffe://lab/node/N1"))), "name other"),
        (_csr(_names(x509.UniformResourceIdentifier(ME.uri), x509.DNSName("example.org"))), "name other"),
        (_csr(_names(x509.DNSName("*.node.lab.internal"))), "name other"),
        (_csr(_names(x509.RFC822Name("a@example.org"))), "name other"),
        (_csr(_names(x509.DirectoryName(_name((NameOID.COMMON_NAME, "n1"))))), "name other"),
        (_csr(_names(x509.RegisteredID(NameOID.COMMON_NAME))), "name other"),
        (_csr(_names(x509.IPAddress(ipaddress.ip_address("10.0.0.2")))), "address other"),
        (_csr(subject=_name((NameOID.COMMON_NAME, "n2"))), "common name"),
        (_csr(subject=_name((NameOID.COMMON_NAME, "n1"), (NameOID.COMMON_NAME, "n2"))), "common name"),
        (_csr(_with(x509.NameConstraints([x509.DNSName("x")], None))), "2.5.29.30"),
        (_csr(_with(x509.TLSFeature([x509.TLSFeatureType.status_request]))), "extension"),
        (_csr(_with(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3"), b"\x05\x00"))), "1.2.3"),
        (_csr(_with(NETSCAPE_CA)), "2.16.840.1.113730.1.1"),
    ],
)
def test_request_for_more_than_a_key_is_refused(pem: str, reason: str) -> None:
    _refused(pem, reason)


def test_name_of_its_machine_is_the_only_other_name_that_is_taken() -> None:
    named = new_csr(KEY, ME, "files1.lab.example")
    assert check_csr(named, ME, address="files1.lab.example") == KEY.public_key()
    for other in ("files2.lab.example", ADDRESS, None):
        _refused(named, "name other", address=other)
    _refused(GOOD, "address other", address="files1.lab.example")


def _extension_request(oid_hex: str = EXTENSION_REQUEST, *, ca: bool = False) -> bytes:
    constraints = _tlv(0x04, _tlv(0x30, b"\x01\x01\xff" if ca else b""))
    extension = _tlv(0x30, bytes.fromhex("0603551d13") + constraints)
    return _tlv(0x30, _tlv(0x06, bytes.fromhex(oid_hex)) + _tlv(0x31, _tlv(0x30, extension)))


def test_second_extension_request_hides_nothing() -> None:
    microsoft = "2b060104018237" + "02010e"
    assert check_csr(_hand_made(_spki(KEY), _extension_request()), ME) == KEY.public_key()
    _refused(_hand_made(_spki(KEY), _extension_request(ca=True)), "CA:TRUE")
    _refused(_hand_made(_spki(KEY), _extension_request() + _extension_request(ca=True)), "")
    _refused(
        _hand_made(_spki(KEY), _extension_request() + _extension_request(microsoft, ca=True)), "more than one"
    )
    two_values = _tlv(0x31, _tlv(0x30, b"") + _tlv(0x30, b""))
    _refused(
        _hand_made(_spki(KEY), _tlv(0x30, _tlv(0x06, bytes.fromhex(EXTENSION_REQUEST)) + two_values)), ""
    )


@given(st.text())
def test_any_text_is_refused(text: str) -> None:
    _refused(text, "")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_request_is_refused(data: st.DataObject) -> None:
    der = bytearray(base64.b64decode("".join(GOOD.splitlines()[1:-1])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(der) - 1))
        der[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(InvalidRequest):
        assert check_csr(_pem(bytes(der)), ME) == KEY.public_key()


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_garbage_key_and_attributes_are_refused(key: bytes, attributes: bytes) -> None:
    _refused(_hand_made(key, attributes), "")
    _refused(_hand_made(_tlv(0x30, key)), "")
