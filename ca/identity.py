"""The identity of a member, and the checks on the names and addresses in it.

An identity is read from the one URI name of a certificate (SPIFFE ID), never from its addresses. No I/O here.
"""

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from ca.errors import InvalidRequest, Unauthorized
from ca.hostnames import WANTED, check_name, is_literal, is_loopback_name

# One DNS label (RFC 1123, section 2.1), lower case: it is used in host names, URIs and file names.
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_URI = re.compile(r"spiffe://(?P<cluster>[a-z0-9-]+)/(?P<role>node|coordinator)/(?P<id>[a-z0-9-]+)")
_PORT_MAX = 65_535
# Their last 32 bits are an IPv4 address: NAT64 (RFC 6052), IPv4-compatible, IPv4-translated (RFC 2765).
_EMBEDDING_NETWORKS = tuple(ipaddress.IPv6Network(n) for n in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96"))
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215: cut as each operator likes
_LOCAL_NAT64_BITS = (48, 56, 64, 96)  # lengths of prefixes; bits 64 to 71 are left out (RFC 6052, 2.2)
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # before an IPv4 address in an interface id (RFC 5214, 6.1)
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")  # RFC 1122, 3.2.1.3: never a destination
_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
# What reading a bad certificate, or one of its extensions, raises in cryptography 46 and later.
X509_FAILURES = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,  # an unknown signature, key or curve: one flipped bit is enough
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Role(StrEnum):
    """The role of a member: store bytes, or agree on metadata."""

    NODE = "node"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Identity:
    """One member of one cluster. Values from outside pass the checks below before they get here."""

    cluster: str
    role: Role
    id: str

    def __post_init__(self) -> None:
        assert _LABEL.fullmatch(self.cluster), "cluster name not checked"
        assert _LABEL.fullmatch(self.id), "member id not checked"

    @property
    def uri(self) -> str:
        """The SPIFFE ID, `spiffe://CLUSTER/ROLE/ID`: what every identity decision reads."""
        return f"spiffe://{self.cluster}/{self.role}/{self.id}"

    @property
    def dns_name(self) -> str:
        """`ID.ROLE.CLUSTER.internal`, which a peer dialled by address is verified by (`server_hostname=`).

        The role is part of it, so that node `a` cannot answer for coordinator `a`.
        """
        return f"{self.id}.{self.role}.{self.cluster}.internal"

    @staticmethod
    def from_uri(uri: str) -> "Identity":
        """The identity that a SPIFFE ID names. Raises Unauthorized for any other text."""
        match = _URI.fullmatch(uri)
        if match is None or not _LABEL.fullmatch(match["cluster"]) or not _LABEL.fullmatch(match["id"]):
            raise Unauthorized("the certificate's URI does not name a member of a cluster")
        return Identity(match["cluster"], Role(match["role"]), match["id"])

    @staticmethod
    def from_certificate(certificate: x509.Certificate) -> "Identity":
        """The identity in a certificate that was verified already.

        Raises Unauthorized unless it has exactly one URI.
        """
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except X509_FAILURES as error:
            raise Unauthorized("the certificate's names cannot be read") from error
        if len(uris) != 1:
            raise Unauthorized(f"the certificate has {len(uris)} URI names instead of one")
        return Identity.from_uri(uris[0])

    @staticmethod
    def from_peer_cert_der(der: bytes) -> "Identity":
        """The identity in the DER that `getpeercert(binary_form=True)` gave. Raises Unauthorized."""
        try:
            certificate = x509.load_der_x509_certificate(der)
        except X509_FAILURES as error:
            raise Unauthorized("the peer's certificate cannot be read") from error
        return Identity.from_certificate(certificate)


def check_member_id(value: object, field: str = "id") -> str:
    """The id of a node or coordinator: one lower-case DNS label. Raises InvalidRequest naming `field`."""
    return _check_label(value, field)


def check_cluster_name(value: object) -> str:
    """The name of a cluster: one lower-case DNS label. Raises InvalidRequest naming `cluster`."""
    return _check_label(value, "cluster")


def check_address(value: object, *, development: bool, field: str = "ip_address") -> str:
    """Return an address that others can connect to, in canonical form: an IP address or a DNS name.

    IPv4-mapped IPv6 becomes IPv4, a name lower case. Loopback, unspecified, multicast and link-local
    addresses are allowed with `development` only, and so are IPv6 addresses that embed such an IPv4 one, and
    names for loopback. Zones (`%eth0`) are never allowed. Raises InvalidRequest naming `field`, with the
    reason.
    """
    if not isinstance(value, str):
        raise InvalidRequest(f"{field}: {WANTED}")
    if not value.isascii() or not is_literal(value) or "%" in value:
        name = check_name(value, field)
        if not development and is_loopback_name(name):
            raise InvalidRequest(
                f"{field}: other machines cannot connect to {name}, which every machine uses for itself"
            )
        return name
    address: _Address = ipaddress.ip_address(value)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    forms = [address, *_embedded_ipv4(address)]
    if _BROADCAST in forms:
        raise InvalidRequest(f"{field}: the broadcast address cannot belong to a machine")
    if not development and any(_is_unreachable(form) for form in forms):
        raise InvalidRequest(
            f"{field}: other machines cannot connect to a loopback, unspecified, multicast or "
            "link-local address"
        )
    return str(address)


def check_port(value: object, field: str = "api_port") -> int:
    """A TCP port, 1..65535; `true` is no port. Raises InvalidRequest naming `field`."""
    if type(value) is not int or not 1 <= value <= _PORT_MAX:
        raise InvalidRequest(f"{field}: an integer from 1 to {_PORT_MAX} is required")
    return value


def _check_label(value: object, field: str) -> str:
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise InvalidRequest(
            f"{field}: 1 to 63 characters of a-z, 0-9 and '-' are required, with no '-' at either end"
        )
    return value


def _embedded_ipv4(address: _Address) -> list[_Address]:
    """The IPv4 addresses that a translator or tunnel would send this one to."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found: list[_Address] = []
    if any(address in network for network in _EMBEDDING_NETWORKS):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    if address in _LOCAL_NAT64:
        possible = [_behind_prefix(int(address), bits) for bits in _LOCAL_NAT64_BITS]
        # One that begins with zero is what another length of the prefix makes of it.
        found += [each for each in possible if each not in _THIS_NETWORK]
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found += address.teredo  # the server and, inverted, the client (RFC 4380, 4)
    if int(address) >> 32 & 0xFFFF_FFFF in _ISATAP:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
    return found


def _behind_prefix(address: int, bits: int) -> ipaddress.IPv4Address:
    """Return the IPv4 address after a NAT64 prefix of `bits` bits."""
    if bits == 96:
        return ipaddress.IPv4Address(address & 0xFFFF_FFFF)
    without_gap = address >> 64 << 56 | address & (1 << 56) - 1  # 120 bits
    return ipaddress.IPv4Address(without_gap >> 120 - bits - 32 & 0xFFFF_FFFF)


def _is_unreachable(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address) and address in _THIS_NETWORK:
        return True
    return address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local
