"""Whom a request is from, as proxies tell it, and as liars do."""

import pytest
from multidict import CIMultiDict

from ca.errors import InvalidRequest
from web.forwarded import ForwardedClient, TrustedProxies, address_in, parse_networks

PROXY, OTHER = "10.0.0.1", "192.0.2.200"
PROXIES = parse_networks("10.0.0.0/24, 2001:db8:1::/48,198.51.100.7")


def read(*fields: tuple[str, str], peer: str = PROXY) -> ForwardedClient | None:
    return PROXIES.read(peer, CIMultiDict(fields))


def client(*fields: tuple[str, str]) -> str:
    found = read(*fields)
    assert found is not None
    return found.client


def x_for(*values: str) -> list[tuple[str, str]]:
    return [("X-Forwarded-For", value) for value in values]


def standard(*values: str) -> list[tuple[str, str]]:
    return [("Forwarded", value) for value in values]


@pytest.mark.parametrize("peer", [OTHER, "", "10.0.1.1", "2001:db8:2::1", "::ffff:192.0.2.1", "not-one"])
def test_word_of_others_counts_for_nothing(peer: str) -> None:
    assert read(*x_for("1.2.3.4"), peer=peer) is None
    assert TrustedProxies().read(PROXY, CIMultiDict(x_for("1.2.3.4"))) is None


@pytest.mark.parametrize("peer", [PROXY, "::ffff:10.0.0.1", "2001:db8:1::9%eth0", "198.51.100.7"])
def test_proxy_is_known_however_its_address_is_written(peer: str) -> None:
    assert read(*x_for("1.2.3.4"), peer=peer) == ForwardedClient("1.2.3.4")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([], PROXY),
        (x_for("192.0.2.1"), "192.0.2.1"),
        (x_for("9.9.9.9, 192.0.2.1"), "192.0.2.1"),  # the client made the first of them up
        (x_for("9.9.9.9", "192.0.2.1"), "192.0.2.1"),
        (x_for("9.9.9.9, 192.0.2.1, 10.0.0.2"), "192.0.2.1"),  # through two proxies
        (x_for("192.0.2.1:4711"), "192.0.2.1"),
        (x_for("[2001:db8::1]:4711"), "2001:db8::1"),
        (x_for("2001:DB8:0::1"), "2001:db8::1"),
        (x_for("::ffff:192.0.2.1"), "192.0.2.1"),
        (x_for("192.0.2.1, unknown"), PROXY),
        (x_for("192.0.2.1, unknown, 10.0.0.2"), "10.0.0.2"),
        (x_for(""), PROXY),
        (x_for(","), PROXY),
        (x_for("192.0.2.1, "), PROXY),
        (x_for("10.0.0.3, 10.0.0.2"), "10.0.0.3"),
        (x_for("*"), PROXY),
        (x_for("192.0.2.1\r\nX: y"), PROXY),
        (x_for("0x7f.1"), PROXY),
        (x_for("fe80::1%eth0"), PROXY),
        (standard("for=192.0.2.1"), "192.0.2.1"),
        (standard("For=192.0.2.1;Proto=https"), "192.0.2.1"),
        (standard('for="192.0.2.1:80"'), "192.0.2.1"),
        (standard('for="[2001:db8::1]:80" ; proto=http'), "2001:db8::1"),
        (standard("for=9.9.9.9, for=192.0.2.1;by=10.0.0.1"), "192.0.2.1"),
        (standard("for=9.9.9.9", "for=192.0.2.1"), "192.0.2.1"),
        (standard("for=192.0.2.1, for=10.0.0.2"), "192.0.2.1"),
        (standard("for=192.0.2.1, for=_hidden"), PROXY),
        (standard("for=unknown"), PROXY),
        (standard("by=10.0.0.1"), PROXY),
        (standard("for=192.0.2.1;for=9.9.9.9"), PROXY),
        (standard('for="192.0.2.1'), PROXY),
        (standard('for=192.0.2.1"'), PROXY),
        (standard('for="9.9.9.9", for=192.0.2.1'), "192.0.2.1"),
        (standard('by="a, for=9.9.9.9", for=192.0.2.1'), "192.0.2.1"),
        (standard('for="\\1\\92.0.2.1"'), "192.0.2.1"),
        (standard("for = 192.0.2.1"), PROXY),
        (standard("192.0.2.1"), PROXY),
        (standard(";;,;"), PROXY),
        (standard(""), PROXY),
        (standard("for=[2001:db8::1]"), PROXY),  # brackets are no token: they stand in quotes
    ],
)
def test_client_is_the_nearest_address_that_a_trusted_proxy_wrote(
    fields: list[tuple[str, str]], expected: str
) -> None:
    assert client(*fields) == expected


def test_two_kinds_that_name_different_clients_count_for_nothing() -> None:
    agreed = [*x_for("192.0.2.1"), *standard("for=192.0.2.1;host=evil.org")]
    assert read(*agreed, ("X-Forwarded-Proto", "https")) == ForwardedClient("192.0.2.1", "https", "")
    differing = [*x_for("192.0.2.1"), *standard("for=9.9.9.9;proto=https;host=evil.org")]
    assert read(*differing, ("X-Forwarded-Host", "evil.org")) == ForwardedClient(PROXY)


def test_so_many_proxies_behind_each_other_end_the_search() -> None:
    hops = ["192.0.2.1", *(f"10.0.0.{number}" for number in range(2, 40))]
    assert client(*x_for(",".join(hops))) == "10.0.0.24"


@pytest.mark.parametrize(
    ("proto", "host", "expected"),
    [
        ("https", "files.example.org", ("https", "files.example.org")),
        ("HTTPS", "Files.Example.org:8443", ("https", "files.example.org:8443")),
        ("http, https", "a.org, b.org", ("https", "b.org")),
        ("javascript", "files.example.org/x", ("", "")),
        ("https", "user@files.example.org", ("https", "")),
        ("https", "a b", ("https", "")),
        ("https", "a.org\r\nSet-Cookie: x", ("https", "")),
        ("https", "[2001:db8::1]:443", ("https", "[2001:db8::1]:443")),
        ("https", "a.org:999999", ("https", "")),
        ("", "", ("", "")),
    ],
    ids=str,
)
def test_scheme_and_host_are_those_of_the_nearest_proxy(
    proto: str, host: str, expected: tuple[str, str]
) -> None:
    told = (("X-Forwarded-Proto", proto), ("X-Forwarded-Host", host))
    assert read(*x_for("192.0.2.1"), *told) == ForwardedClient("192.0.2.1", *expected)
    assert read(*told) == ForwardedClient(PROXY, *expected)


def test_scheme_and_host_of_the_standard_header_are_those_the_client_asked_by() -> None:
    told = "for=192.0.2.1;proto=https;host=files.example.org, for=10.0.0.2;proto=http;host=inner"
    assert read(*standard(told)) == ForwardedClient("192.0.2.1", "https", "files.example.org")
    assert read(*standard('for=192.0.2.1;host="a.org:8443"')) == ForwardedClient(
        "192.0.2.1", "", "a.org:8443"
    )


@pytest.mark.parametrize(
    "text", ["*", "0.0.0.0/0", "::/0", "10.0.0.1/24", "10.0.0.0/33", "proxy.org", "10.0.0"]
)
def test_what_is_no_network_or_is_everybody_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^--trusted-proxies: "):
        parse_networks(f"10.0.0.1,{text}")


def test_networks_have_a_bound() -> None:
    with pytest.raises(InvalidRequest):
        parse_networks(",".join(["10.0.0.1"] * 65))


def test_long_header_is_read_in_no_time() -> None:
    for text in (" " * 8000, '"' * 8000, "," * 8000, ";=" * 4000, "a" * 8000, '\\"' * 4000, "for=" * 2000):
        assert client(*standard(text)) == PROXY
        assert client(*x_for(text)) == PROXY


@pytest.mark.parametrize(
    "text", ["[]", "[::1", "::1]", "[1.2.3.4]", "1.2.3.4:", "1.2.3.4:x", "[::1]x", "[::1%lo]"]
)
def test_what_only_looks_like_an_address_is_none(text: str) -> None:
    assert address_in(text) == ""
