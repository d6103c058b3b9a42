"""How commands name a coordinator: ID=ADDRESS[:PEER_PORT[:API_PORT]]. Shared by six groups of commands."""

import ipaddress
import re

from ca.errors import InvalidRequest
from ca.identity import check_address
from metadata.model.records import CoordinatorRecord

API_PORT = 7441
PEER_PORT = 7442
PORT_MAX = 65535
METAVAR = "ADDRESS[:PEER_PORT[:API_PORT]]"
_PLACE = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?(?::([0-9]{1,5}))?", re.ASCII)


def member_of(text: str) -> CoordinatorRecord:
    """Parse ID=ADDRESS[:PEER_PORT[:API_PORT]]. Raises InvalidRequest; see `record_at`."""
    member_id, separator, place = text.partition("=")
    if not separator or not member_id:
        raise InvalidRequest(f"member: {text!r} is not ID={METAVAR}.")
    return record_at(member_id, place, field="member")


def record_at(coordinator_id: str, place: str, *, field: str = "address") -> CoordinatorRecord:
    """A coordinator at ADDRESS[:PEER_PORT[:API_PORT]]. Raises InvalidRequest naming `field`.

    The address is an IP address, or the name of its machine.

    An IPv6 address needs brackets if ports follow it; otherwise they are optional. An address without
    brackets that ends like a default port is rejected, because it could be mistaken for another address.
    """
    if _is_bare_ipv6(place) and place.rpartition(":")[2] in (str(PEER_PORT), str(API_PORT)):
        raise InvalidRequest(
            f"{field}: put the address of {place!r} in brackets, with the ports after or inside them."
        )
    match = _PLACE.fullmatch(f"[{place}]" if _is_bare_ipv6(place) else place)
    address = match[1].strip("[]") if match is not None else ""
    ports = [int(match[2] or PEER_PORT), int(match[3] or API_PORT)] if match is not None else []
    if not address or not all(1 <= port <= PORT_MAX for port in ports):
        raise InvalidRequest(
            f"{field}: {place!r} is not {METAVAR}. For IPv6, write the address in brackets before the ports."
        )
    address = check_address(address, development=True, field=field)  # loopback is for the cluster to refuse
    return CoordinatorRecord(
        coordinator_id=coordinator_id, address=address, peer_port=ports[0], api_port=ports[1]
    )


def plain_address(text: str) -> str:
    """An address without the brackets that some write around one of IPv6."""
    inner = text.removeprefix("[").removesuffix("]")
    return inner if text == f"[{inner}]" and _is_bare_ipv6(inner) else text


def _is_bare_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
