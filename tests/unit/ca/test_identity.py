"""Member ids, cluster names, addresses, ports, and the identity that a certificate carries."""

import contextlib
import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import InvalidRequest, Unauthorized
from ca.hostnames import is_literal
from ca.identity import Identity, Role, check_address, check_cluster_name, check_member_id, check_port
from ca.keys import new_key

NODE = Identity("lab", Role.NODE, "n1")
COORDINATOR = Identity("lab", Role.COORDINATOR, "n1")


def _certificate(names: list[x509.GeneralName] | None) -> bytes:
    key = new_key()
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "n1")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
    )
    if names is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def test_node_and_coordinator_of_one_id_share_no_name() -> None:
    assert NODE.uri == "spiffe://lab/node/n1"
    assert NODE.dns_name == "n1.node.lab.internal"
    assert COORDINATOR.uri == "spiffe://lab/coordinator/n1"
    assert COORDINATOR.dns_name == "n1.coordinator.lab.internal"


@pytest.mark.parametrize("identity", [NODE, COORDINATOR])
def test_uri_reads_back(identity: Identity) -> None:
    assert Identity.from_uri(identity.uri) == identity


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "spiffe://lab/node/",
        "spiffe://lab/admin/n1",
        "spiffe://lab/node/N1",
        "spiffe://lab/node/n1/",
        "spiffe://lab/node/n1\n",
        "spiffe://lab/node/-n1",
        "spiffe://-/node/n1",
        "spiffe://lab/node/" + "a" * 64,
        "SPIFFE://lab/node/n1",
        "https://lab/node/n1",
        "spiffe://lab:80/node/n1",
        "spiffe://lab/node/n1?x",
    ],
)
def test_other_uris_name_nobody(uri: str) -> None:
    with pytest.raises(Unauthorized):
        Identity.from_uri(uri)


@given(st.text())
def test_any_text_as_uri_is_unauthorized_or_an_identity(text: str) -> None:
    with contextlib.suppress(Unauthorized):
        assert Identity.from_uri(text).uri == text


def test_certificate_with_one_uri_is_that_member() -> None:
    der = _certificate([x509.UniformResourceIdentifier(NODE.uri), x509.DNSName("other")])
    assert Identity.from_peer_cert_der(der) == NODE


@pytest.mark.parametrize(
    "names",
    [
        None,
        [x509.DNSName(NODE.dns_name)],
        [x509.UniformResourceIdentifier(NODE.uri), x509.UniformResourceIdentifier(COORDINATOR.uri)],
        [x509.UniformResourceIdentifier("https://example.org")],
    ],
)
def test_certificate_without_exactly_one_member_uri_is_unauthorized(
    names: list[x509.GeneralName] | None,
) -> None:
    with pytest.raises(Unauthorized):
        Identity.from_peer_cert_der(_certificate(names))


@given(st.binary(max_size=200))
def test_any_bytes_as_certificate_are_unauthorized(der: bytes) -> None:
    with pytest.raises(Unauthorized):
        Identity.from_peer_cert_der(der)


@pytest.mark.parametrize("value", ["a", "0", "node-1", "a" * 63, "a--b"])
def test_dns_labels_are_member_ids_and_cluster_names(value: str) -> None:
    assert check_member_id(value) == value
    assert check_cluster_name(value) == value


@pytest.mark.parametrize(
    "value", ["", "-a", "a-", "A", "a.b", "a_b", "a\n", "a" * 64, "é", "a/b", 5, None, True, b"a"]
)
def test_other_member_ids_are_refused_by_field_name(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^id: "):
        check_member_id(value)
    with pytest.raises(InvalidRequest, match=r"^cluster: "):
        check_cluster_name(value)


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("64:ff9b::a01:203", "64:ff9b::a01:203"),
        ("fd00::1", "fd00::1"),
        ("2001:0:a01:203::1", "2001:0:a01:203::1"),
        ("64:ff9b:1:a01:2:300::", "64:ff9b:1:a01:2:300::"),
    ],
)
def test_address_becomes_its_canonical_literal(value: str, canonical: str) -> None:
    assert check_address(value, development=False) == canonical


@pytest.mark.parametrize(
    "value",
    [
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "224.0.0.1",
        "ff02::1",
        "169.254.1.1",
        "fe80::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "::7f00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::1",  # Teredo, with a server on the loopback
        "2001:0:a01:203::80ff:fffe",  # and with a client there
        "::ffff:0:127.0.0.1",
        "64:ff9b:1:7f00:0:100::",
        "64:ff9b:1:7f:0:1::",
        "64:ff9b:1:0:7f:0:100:0",
        "2001:db8::5efe:7f00:1",
        "2001:db8::200:5efe:a9fe:1",
    ],
)
def test_undiallable_address_needs_the_development_flag(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^ip_address: "):
        check_address(value, development=False)
    assert check_address(value, development=True)


@pytest.mark.parametrize(
    "value",
    [
        "",
        " 10.0.0.1",
        "10.0.0.1 ",
        "10.0.0",
        "010.0.0.1",
        "10.0.0.1:80",
        "[::1]",
        "fe80::1%eth0",
        "10.0.0.0/8",
        "١٠.0.0.1",
        "255.255.255.255",
        "::ffff:255.255.255.255",
        "1" * 1000,
        167772161,
        None,
        True,
        b"\x0a\x00\x00\x01",
    ],
)
def test_what_is_no_address_is_refused_even_in_development(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^ip_address: "):
        check_address(value, development=True)


@given(st.ip_addresses())
def test_accepted_addresses_are_stable_and_diallable(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    try:
        canonical = check_address(str(address), development=False)
    except InvalidRequest:
        return
    assert check_address(canonical, development=False) == canonical
    assert not ipaddress.ip_address(canonical).is_loopback


@given(st.text(max_size=60))
def test_any_text_as_address_is_refused_or_canonical(text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        address = check_address(text, development=True)
        assert not is_literal(address) or str(ipaddress.ip_address(address)) == address


@pytest.mark.parametrize("value", [1, 443, 65535])
def test_ports_pass(value: int) -> None:
    assert check_port(value) == value


@pytest.mark.parametrize("value", [0, -1, 65536, True, 443.0, "443", None, 2**70])
def test_other_ports_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^api_port: "):
        check_port(value)
