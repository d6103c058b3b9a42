"""The names of machines that are allowed as member addresses. No I/O here.

The certificate of a member contains its machine name in addition to its identity. Others verify the identity
by a name as well (`Identity.dns_name`). So no machine may have a name of that form: its certificate would be
another member's.
"""

import ipaddress
import re
from typing import Final

from ca.errors import InvalidRequest

WANTED: Final = "an IPv4 or IPv6 address or a DNS name is required"
NAME_CHARS_MAX: Final = 253  # RFC 1035, section 2.3.4, without the dot at the end
LABEL_CHARS_MAX: Final = 63
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
# What a resolver takes for a number of an IPv4 address: "10.1", "0x7f.1" and "2130706433" name no machine.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_IDENTITY: Final = re.compile(r"[^.]+\.(node|coordinator)\.[^.]+\.internal")
_LOOPBACK: Final = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


def is_literal(address: str) -> bool:
    """Whether it is an address itself, and not the name of a machine."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def authority_of(address: str, port: int) -> str:
    """`HOST:PORT` as URLs and the header Host have it; an IPv6 address gets its brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def is_loopback_name(name: str) -> bool:
    """Whether every machine takes this name for itself (RFC 6761, section 6.3)."""
    return name in _LOOPBACK or name.endswith(".localhost")


def is_identity_name(name: str) -> bool:
    """Return whether a name has the form of the names that members verify for each other."""
    return _IDENTITY.fullmatch(name.lower()) is not None


def check_name(value: str, field: str) -> str:
    """A host name in lower case (RFC 1123, section 2.1). Raises InvalidRequest naming `field`, and why."""
    name = value.lower()
    if reason := _fault_of(name):
        raise InvalidRequest(f"{field}: {reason}")
    return name


def _fault_of(name: str) -> str:
    """Why this is no name of a machine; "" if it is one."""
    if not name or any(char.isspace() or not char.isprintable() for char in name):
        return WANTED
    if not name.isascii():
        return "write a name with other letters in its ASCII form, which begins with xn--"
    if len(name) > NAME_CHARS_MAX:
        return f"a DNS name has at most {NAME_CHARS_MAX} characters"
    for char, reason in _FOREIGN.items():
        if char in name:
            return reason
    if name.endswith("."):
        return "write the name without the dot at its end"
    labels = name.split(".")
    if not all(len(label) <= LABEL_CHARS_MAX and _LABEL.fullmatch(label) for label in labels):
        return (
            f"{WANTED}: each part of a name must be 1 to {LABEL_CHARS_MAX} of a-z, 0-9 and '-', with "
            "no '-' at either end"
        )
    if _NUMBER.fullmatch(labels[-1]):
        return f"{WANTED}: this is not a valid IPv4 address, and a name cannot end with a number"
    if is_identity_name(name):
        return (
            "names of the form ID.node.CLUSTER.internal are reserved for members: use another name "
            "for the machine"
        )
    return ""


_FOREIGN: Final = {
    "*": "a wildcard is not the name of a machine",
    "_": "a machine's name cannot contain an underscore",
    "%": f"{WANTED}, without a zone",
    "/": f"{WANTED}, not a URL",
    "@": f"{WANTED}, without a user",
    "[": f"{WANTED}, without brackets and port",
    "]": f"{WANTED}, without brackets and port",
    ":": f"{WANTED}, without a port",
}
