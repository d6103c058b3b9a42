"""Which names of machines are addresses of members, and why others are not."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import InvalidRequest
from ca.hostnames import is_identity_name, is_literal, is_loopback_name
from ca.identity import Identity, Role, check_address

LONGEST = ".".join(["a" * 63] * 3 + ["b" * 61])


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("files1", "files1"),
        ("Files1.LAB.example", "files1.lab.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("10.example", "10.example"),
        ("4-5.6a", "4-5.6a"),
        ("n1.ec2.internal", "n1.ec2.internal"),
        ("node.lab.internal", "node.lab.internal"),
        (LONGEST, LONGEST),
    ],
    ids=lambda value: value[:20],
)
def test_name_of_a_machine_is_an_address_in_lower_case(name: str, canonical: str) -> None:
    assert check_address(name, development=False) == canonical
    assert not is_literal(canonical)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "an IPv4 or IPv6 address or a DNS name is required"),
        (" ", "an IPv4 or IPv6 address or a DNS name is required"),
        ("files\n", "an IPv4 or IPv6 address or a DNS name is required"),
        ("*.lab.example", "a wildcard is not the name of a machine"),
        ("bücher.example", "write a name with other letters in its ASCII form, which begins with xn--"),
        ("files.lab.example.", "write the name without the dot at its end"),
        ("files_1", "a machine's name cannot contain an underscore"),
        ("files:7443", "an IPv4 or IPv6 address or a DNS name is required, without a port"),
        ("https://files", "an IPv4 or IPv6 address or a DNS name is required, not a URL"),
        ("root@files", "an IPv4 or IPv6 address or a DNS name is required, without a user"),
        ("[files]", "an IPv4 or IPv6 address or a DNS name is required, without brackets and port"),
        (f"{LONGEST}b", "a DNS name has at most 253 characters"),
        (
            "a" * 64,
            "an IPv4 or IPv6 address or a DNS name is required: each part of a name must be 1 to 63",
        ),
        ("-files", "an IPv4 or IPv6 address or a DNS name is required: each part"),
        ("files-.lab", "an IPv4 or IPv6 address or a DNS name is required: each part"),
        ("files..lab", "an IPv4 or IPv6 address or a DNS name is required: each part"),
        (".files", "an IPv4 or IPv6 address or a DNS name is required: each part"),
        ("10.0.0", "an IPv4 or IPv6 address or a DNS name is required: this is not a valid IPv4 address"),
        ("2130706433", "an IPv4 or IPv6 address or a DNS name is required: this is not a valid IPv4 address"),
        ("0x7f.1", "an IPv4 or IPv6 address or a DNS name is required: this is not a valid IPv4 address"),
        (
            "files.0x7f000001",
            "an IPv4 or IPv6 address or a DNS name is required: this is not a valid IPv4 address",
        ),
        (
            "c1.coordinator.lab.internal",
            "names of the form ID.node.CLUSTER.internal are reserved for members",
        ),
        ("N1.Node.lab.internal", "names of the form ID.node.CLUSTER.internal are reserved for members"),
    ],
    ids=lambda value: value[:12],
)
def test_other_names_are_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_address(name, development=True, field="address")
    assert caught.value.details.startswith(f"address: {reason}")


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "a.localhost", "ip6-localhost"])
def test_name_for_loopback_needs_the_development_flag(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^ip_address: other machines cannot connect to "):
        check_address(name, development=False)
    assert is_loopback_name(check_address(name, development=True))


@pytest.mark.parametrize("role", list(Role))
def test_no_machine_has_the_name_that_a_member_is_verified_by(role: Role) -> None:
    name = Identity("lab", role, "m1").dns_name
    assert is_identity_name(name)
    assert is_identity_name(name.upper())
    with pytest.raises(InvalidRequest):
        check_address(name, development=True)


@given(st.text(max_size=300))
def test_any_text_is_refused_or_an_address_that_is_taken_again(text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        address = check_address(text, development=True)
        assert check_address(address, development=True) == address
        assert not is_identity_name(address)
