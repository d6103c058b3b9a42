"""The authority's certificates: their shape, what OpenSSL in strict mode says, and the joiner's checks."""

import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from ca.certificates import (
    BACK_DATE,
    LEAF_LIFE,
    Authority,
    UntrustedCertificate,
    certificates_in,
    check_authority,
    check_leaf_matches,
    new_intermediate,
    new_root,
    renewal_of,
    root_digest,
    serial_hex,
    trusted_root,
)
from ca.errors import Internal
from ca.identity import Identity, Role
from ca.keys import new_key, public_key_digest

NOW = datetime.now(UTC)
ME = Identity("lab", Role.NODE, "n1")
ROOT, ROOT_KEY = new_root("lab", now=NOW)
AUTHORITY = Authority(ROOT, *new_intermediate(ROOT, ROOT_KEY, "lab", now=NOW))
KEY = new_key()
LEAF = AUTHORITY.sign_leaf(KEY.public_key(), ME, "10.0.0.1", now=NOW)


T = TypeVar("T", bound=x509.ExtensionType)


def _extension(certificate: x509.Certificate, kind: type[T]) -> x509.Extension[T]:
    return certificate.extensions.get_extension_for_class(kind)


def test_root_is_a_ten_year_authority_without_path_length() -> None:
    (root,) = certificates_in(ROOT)
    constraints = _extension(root, x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, None)
    assert root.not_valid_after_utc - NOW > timedelta(days=3650)


def test_intermediate_is_a_one_year_authority_over_leaves_only() -> None:
    (intermediate,) = certificates_in(AUTHORITY.intermediate_pem)
    constraints = _extension(intermediate, x509.BasicConstraints)
    usage = _extension(intermediate, x509.KeyUsage)
    assert constraints.critical
    assert usage.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    assert timedelta(days=364) < intermediate.not_valid_after_utc - NOW <= timedelta(days=365)


def test_leaf_names_one_uri_one_dns_name_and_its_address() -> None:
    leaf, intermediate = certificates_in(LEAF.pem)
    names = _extension(leaf, x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [ME.uri]
    assert names.get_values_for_type(x509.DNSName) == [ME.dns_name]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert len(list(names)) == 3
    assert [intermediate] == certificates_in(AUTHORITY.intermediate_pem)
    assert Identity.from_certificate(leaf) == ME


def test_leaf_of_a_named_machine_has_its_name_and_no_address() -> None:
    names = _names_of("files1.lab.example")
    assert names.get_values_for_type(x509.DNSName) == [ME.dns_name, "files1.lab.example"]
    assert names.get_values_for_type(x509.IPAddress) == []
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [ME.uri]
    assert _names_of("localhost").get_values_for_type(x509.DNSName) == [ME.dns_name, "localhost"]


def _names_of(address: str) -> x509.SubjectAlternativeName:
    leaf = AUTHORITY.sign_leaf(KEY.public_key(), ME, address, now=NOW)
    return _extension(certificates_in(leaf.pem)[0], x509.SubjectAlternativeName).value


def test_no_leaf_is_made_with_the_name_of_another_member() -> None:
    other = Identity("lab", Role.COORDINATOR, "c1").dns_name
    with pytest.raises(AssertionError):
        AUTHORITY.sign_leaf(KEY.public_key(), ME, other, now=NOW)


def test_leaf_signs_handshakes_and_nothing_else() -> None:
    leaf = certificates_in(LEAF.pem)[0]
    constraints, usage = _extension(leaf, x509.BasicConstraints), _extension(leaf, x509.KeyUsage)
    assert constraints.critical
    assert not constraints.value.ca
    assert usage.critical
    assert usage.value.digital_signature
    assert not usage.value.key_cert_sign
    assert not usage.value.crl_sign
    assert not usage.value.key_encipherment
    purposes = set(_extension(leaf, x509.ExtendedKeyUsage).value)
    assert purposes == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def test_leaf_lives_seven_days_from_five_minutes_ago() -> None:
    now_ms = int(NOW.timestamp()) * 1000
    assert LEAF.not_before_ms == now_ms - BACK_DATE // timedelta(milliseconds=1)
    assert LEAF.not_after_ms == now_ms + LEAF_LIFE // timedelta(milliseconds=1)
    assert LEAF.public_key_digest == public_key_digest(KEY.public_key())
    assert LEAF.serial == serial_hex(certificates_in(LEAF.pem)[0])


def test_every_certificate_has_its_key_identifiers_and_a_serial_of_its_own() -> None:
    certificates = [*certificates_in(LEAF.pem), *certificates_in(ROOT)]
    for certificate, issuer in zip(certificates, [*certificates[1:], certificates[-1]], strict=True):
        subject_key = _extension(issuer, x509.SubjectKeyIdentifier).value.digest
        assert _extension(certificate, x509.AuthorityKeyIdentifier).value.key_identifier == subject_key
    assert len({certificate.serial_number for certificate in certificates}) == 3
    assert AUTHORITY.sign_leaf(KEY.public_key(), ME, "10.0.0.1", now=NOW).serial != LEAF.serial


def test_longest_names_fit() -> None:
    cluster = "c" * 63
    root, root_key = new_root(cluster, now=NOW)
    authority = Authority(root, *new_intermediate(root, root_key, cluster, now=NOW))
    identity = Identity(cluster, Role.COORDINATOR, "i" * 63)
    leaf = authority.sign_leaf(KEY.public_key(), identity, "2001:db8::1", now=NOW)
    assert check_leaf_matches(leaf.pem, KEY, root, identity=identity, now=NOW) == identity


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command here")
def test_openssl_verifies_the_chain_in_strict_mode_for_both_purposes(tmp_path: Path) -> None:
    (tmp_path / "root").write_text(ROOT)
    (tmp_path / "intermediate").write_text(AUTHORITY.intermediate_pem)
    (tmp_path / "leaf").write_text(LEAF.pem)
    for purpose in ("sslserver", "sslclient"):
        arguments = [
            "-x509_strict",
            "-CAfile",
            "root",
            "-untrusted",
            "intermediate",
            "-purpose",
            purpose,
            "leaf",
        ]
        done = subprocess.run(
            ["openssl", "verify", *arguments], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_rsa_keys_are_signed_too() -> None:
    key = rsa.generate_private_key(65537, 2048).public_key()
    leaf = AUTHORITY.sign_leaf(key, ME, "::1", now=NOW)
    assert certificates_in(leaf.pem)[0].public_key() == key


def test_leaf_never_outlives_its_intermediate() -> None:
    end = certificates_in(AUTHORITY.intermediate_pem)[0].not_valid_after_utc
    late = AUTHORITY.sign_leaf(KEY.public_key(), ME, "10.0.0.1", now=end - timedelta(days=1))
    assert late.not_after_ms == int(end.timestamp()) * 1000
    with pytest.raises(Internal, match="intermediate certificate has expired"):
        AUTHORITY.sign_leaf(KEY.public_key(), ME, "10.0.0.1", now=end - timedelta(minutes=1))


OTHER_ROOT, OTHER_ROOT_KEY = new_root("lab", now=NOW)


@pytest.mark.parametrize(
    ("authority", "reason"),
    [
        (
            Authority(ROOT, *new_intermediate(OTHER_ROOT, OTHER_ROOT_KEY, "lab", now=NOW)),
            "was not issued under",
        ),
        (Authority(ROOT, AUTHORITY.intermediate_pem, KEY), "belongs to another key"),
        (Authority(ROOT, ROOT, ROOT_KEY), "allowed to sign other authorities"),
        (Authority(ROOT, AUTHORITY.intermediate_pem * 2, AUTHORITY.intermediate_key), "got 2"),
        (Authority(ROOT, LEAF.pem.partition("-----END")[0], KEY), "not PEM text"),
        (
            Authority(ROOT, *new_intermediate(ROOT, ROOT_KEY, "lab", now=NOW - timedelta(days=400))),
            "has expired",
        ),
        (
            Authority(ROOT, *new_intermediate(ROOT, ROOT_KEY, "lab", now=NOW + timedelta(days=1))),
            "was not issued under",
        ),
    ],
)
def test_authority_whose_leaves_nobody_would_trust_is_refused(authority: Authority, reason: str) -> None:
    check_authority(AUTHORITY, "lab", now=NOW)
    with pytest.raises(UntrustedCertificate, match=reason):
        check_authority(authority, "lab", now=NOW)


def test_root_key_of_another_root_signs_no_intermediate() -> None:
    with pytest.raises(UntrustedCertificate, match="root key"):
        new_intermediate(ROOT, OTHER_ROOT_KEY, "lab", now=NOW)


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")  # of serials < 1
def test_root_of_which_any_bit_has_flipped_signs_or_is_refused_with_a_reason() -> None:
    encoded = bytearray(certificates_in(ROOT)[0].public_bytes(serialization.Encoding.DER))
    refusals = set()
    for index in range(len(encoded)):
        flipped = encoded.copy()
        flipped[index] ^= 1 << index % 8
        pem = ssl.DER_cert_to_PEM_cert(bytes(flipped))
        try:
            intermediate_pem, _ = new_intermediate(pem, ROOT_KEY, "lab", now=NOW)
        except UntrustedCertificate as refusal:
            refusals.add(str(refusal).split(":")[0])
        else:
            assert len(certificates_in(intermediate_pem)) == 1
    assert "the root certificate cannot sign" in refusals


def test_keys_are_not_in_the_repr() -> None:
    assert "intermediate_key" not in repr(AUTHORITY)


def test_joiner_takes_the_root_that_the_token_names_and_nothing_with_it() -> None:
    assert certificates_in(trusted_root(f"note\n{ROOT}", root_digest(ROOT))) == certificates_in(ROOT)
    assert trusted_root(f"note\n{ROOT}", root_digest(ROOT)) == ROOT
    other, _ = new_root("lab", now=NOW)
    for bundle in (other, ROOT + other, other + ROOT, ROOT + ROOT, "", "garbage"):
        with pytest.raises(UntrustedCertificate):
            trusted_root(bundle, root_digest(ROOT))


def test_joiner_accepts_its_own_leaf() -> None:
    assert check_leaf_matches(LEAF.pem, KEY, ROOT) == ME
    other, _ = new_root("lab", now=NOW)
    assert check_leaf_matches(LEAF.pem, KEY, other + ROOT, identity=ME, now=NOW) == ME


def test_joiner_refuses_a_leaf_of_another_key_name_root_or_time() -> None:
    other_root, _ = new_root("lab", now=NOW)
    leaf_only = LEAF.pem[: LEAF.pem.index("-----END CERTIFICATE-----") + 26]
    with pytest.raises(UntrustedCertificate, match="another key"):
        check_leaf_matches(LEAF.pem, new_key(), ROOT)
    with pytest.raises(UntrustedCertificate, match="not for spiffe://lab/node/n2"):
        check_leaf_matches(LEAF.pem, KEY, ROOT, identity=Identity("lab", Role.NODE, "n2"))
    for leaf, root in [(LEAF.pem, other_root), (leaf_only, ROOT)]:
        with pytest.raises(
            UntrustedCertificate, match=r"was not issued under the cluster's root certificate: [^<]+$"
        ):
            check_leaf_matches(leaf, KEY, root, now=NOW)
    for now in (NOW + timedelta(days=8), NOW - timedelta(minutes=6)):
        clock = (
            rf"^the certificate is valid from \S+Z to \S+Z, and the clock here says {now:%Y-%m-%dT%H:%M:%SZ}$"
        )
        with pytest.raises(UntrustedCertificate, match=clock):
            check_leaf_matches(LEAF.pem, KEY, ROOT, now=now)


def test_joiner_refuses_what_is_no_leaf() -> None:
    for pem in ("", "garbage", "é", ROOT * 200, ROOT * 17):
        with pytest.raises(UntrustedCertificate):
            check_leaf_matches(pem, KEY, ROOT)
    with pytest.raises(UntrustedCertificate):
        check_leaf_matches(AUTHORITY.intermediate_pem, AUTHORITY.intermediate_key, ROOT)


@given(st.text())
def test_any_text_as_bundle_is_untrusted(text: str) -> None:
    with pytest.raises(UntrustedCertificate):
        certificates_in(text)


@given(st.integers(0, 2**40), st.integers(1, 2**40), st.floats(-1, 1))
def test_renewal_is_due_at_two_thirds_of_life_give_or_take_a_tenth(
    start: int, life: int, jitter: float
) -> None:
    due = renewal_of(start, start + life, jitter).due_at_ms - start
    assert life * 2 / 3 - life / 10 - 2 <= due <= life * 2 / 3 + life / 10 + 2
    renewal = renewal_of(500, 3500, 0.0)
    assert [at_ms for at_ms in (499, 500, 2499, 2500, 4000) if renewal.is_due(at_ms)] == [499, 2500, 4000]
