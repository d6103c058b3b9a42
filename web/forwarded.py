"""Determine the original client of a request from trusted proxies. Pure: no I/O here.

Proxies send `Forwarded` (RFC 7239) or `X-Forwarded-For`, `-Proto` and `-Host`. Any client can send these. So
they count only on connections of trusted proxies, and only the addresses that such proxies wrote: from the
right, up to the first address that is no trusted proxy. Many proxies set one kind and pass on a client's
fields of the other kind. If both arrive and name different clients, neither counts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from ca.errors import InvalidRequest

OPTION: Final = "--trusted-proxies"
HOPS_MAX: Final = 16  # proxies behind each other that are looked at
NETWORKS_MAX: Final = 64
# A name or an address, and maybe a port, as they stand in a URL or in the header Host.
HOST: Final = r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z](?:[0-9A-Za-z.-]{0,251}[0-9A-Za-z])?)(?::[0-9]{1,5})?"
_HOST: Final = re.compile(HOST)
_SCHEMES: Final = ("http", "https")
_PORT: Final = re.compile(r":[0-9]{1,5}")
_PIECE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^",;]+|[,;]')
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Headers = CIMultiDict[str] | CIMultiDictProxy[str]
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class ForwardedClient:
    """The facts that a proxy reported about a request; scheme and host are "" if it did not report them."""

    client: str
    scheme: str = ""
    host: str = ""


class TrustedProxies:
    """The networks whose word counts; by default none."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = tuple(networks)

    def trusts(self, address: str) -> bool:
        """Whether a proxy of this address is believed."""
        found = _parsed(address)
        return found is not None and any(found in network for network in self._networks)

    def read(self, peer: str, headers: Headers) -> ForwardedClient | None:
        """Return the original client of a request, or None if no trusted proxy reported one."""
        if not self._networks or not self.trusts(peer):
            return None
        standard = self._standard(peer, headers.getall("Forwarded", ()))
        usual = self._usual(peer, headers)
        if standard is None or usual is None:
            return standard or usual or ForwardedClient(peer, *_told(headers))
        return usual if standard.client == usual.client else ForwardedClient(peer)

    def _usual(self, peer: str, headers: Headers) -> ForwardedClient | None:
        fields = headers.getall("X-Forwarded-For", ())
        if not fields:
            return None
        return ForwardedClient(self._client(peer, ",".join(fields).split(","))[0], *_told(headers))

    def _standard(self, peer: str, fields: Sequence[str]) -> ForwardedClient | None:
        if not fields:
            return None
        elements = _elements(",".join(fields))
        if elements is None:
            return ForwardedClient(peer)
        client, hops = self._client(peer, [element.get("for", "") for element in elements])
        if not hops:
            return ForwardedClient(client)
        asked = elements[-hops]
        return ForwardedClient(client, _scheme(asked.get("proto", "")), _host(asked.get("host", "")))

    def _client(self, peer: str, named: Sequence[str]) -> tuple[str, int]:
        """The nearest address that is no trusted proxy, and how many of `named` say so, from the right.

        `unknown`, and names that hide one, end the search: then it is the proxy that told so.
        """
        client, hops = peer, 0
        for text in reversed(named[-HOPS_MAX:]):
            address = address_in(text)
            if not address:
                break
            client, hops = address, hops + 1
            if not self.trusts(address):
                break
        return client, hops


def parse_networks(text: str) -> TrustedProxies:
    """Networks in CIDR notation, or single addresses, between commas. Raises InvalidRequest."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > NETWORKS_MAX:
        raise InvalidRequest(f"{OPTION}: at most {NETWORKS_MAX} networks are allowed.")
    return TrustedProxies([_network(part) for part in parts])


def address_in(text: str) -> str:
    """The address of a hop: `192.0.2.1`, `2001:db8::1` or `[2001:db8::1]`, maybe with a port behind it.

    "" for anything else, `unknown` and obfuscated names too.
    """
    told = text.strip(" \t")
    if told.startswith("["):
        inner, closed, port = told[1:].partition("]")
        is_plain = bool(closed) and ":" in inner and (not port or _PORT.fullmatch(port) is not None)
        told = inner if is_plain else ""
    elif told.count(":") == 1:
        host, _, port = told.partition(":")
        told = host if _PORT.fullmatch(f":{port}") else ""
    found = _parsed(told) if "%" not in told else None
    return "" if found is None else str(found)


def _parsed(text: str) -> object | None:
    """An address; one of IPv4 that is written in IPv6 is the one of IPv4."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _network(text: str) -> Network:
    try:
        found = ip_network(text)
    except ValueError as error:
        raise InvalidRequest(f"{OPTION}: {text!r} is not a network such as 192.0.2.0/24: {error}.") from error
    if not found.prefixlen:
        raise InvalidRequest(
            f"{OPTION}: {text!r} contains every address. Give only the addresses of your proxies."
        )
    return found


def _told(headers: Headers) -> tuple[str, str]:
    """Scheme and host that the nearest proxy told: of several values the last, which it wrote itself."""
    return _scheme(_last(headers, "X-Forwarded-Proto")), _host(_last(headers, "X-Forwarded-Host"))


def _last(headers: Headers, name: str) -> str:
    return ",".join(headers.getall(name, ())).rpartition(",")[2].strip(" \t")


def _scheme(text: str) -> str:
    return text.lower() if text.lower() in _SCHEMES else ""


def _host(text: str) -> str:
    return text.lower() if _HOST.fullmatch(text) else ""


def _elements(text: str) -> list[Mapping[str, str]] | None:
    """The elements of a `Forwarded` field, names in lower case; None when it is not well-formed."""
    pieces, at = [], 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            return None
        pieces.append(piece[0])
        at = piece.end()
    elements: list[dict[str, str]] = [{}]
    for pair in _pairs(pieces):
        if pair == ",":
            elements.append({})
            continue
        name, _, value = pair.partition("=")
        name = name.lstrip(" \t").lower()
        if _NAME.fullmatch(name) is None or name in elements[-1] or (found := _unquoted(value)) is None:
            return None
        elements[-1][name] = found
    return [element for element in elements if element]


def _pairs(pieces: Iterable[str]) -> Iterable[str]:
    """`name=value` as they stand, and a comma between two elements."""
    pair = ""
    for piece in pieces:
        if piece not in (",", ";"):
            pair += piece
            continue
        if pair.strip(" \t"):
            yield pair
        pair = ""
        if piece == ",":
            yield piece
    if pair.strip(" \t"):
        yield pair


def _unquoted(value: str) -> str | None:
    """A token or a quoted string as the text that it stands for; None for anything else."""
    told = value.rstrip(" \t")
    if told.startswith('"'):
        is_one = len(told) > 1 and told.endswith('"') and _PIECE.fullmatch(told) is not None
        return re.sub(r"\\(.)", r"\1", told[1:-1]) if is_one else None
    return told if _NAME.fullmatch(told) else None
