"""How commands name a coordinator and where it listens: ID=IP[:PEER_PORT[:API_PORT]]."""

from ca.errors import InvalidRequest
from coordinator.records import CoordinatorRecord

API_PORT = 7441
PEER_PORT = 7442
METAVAR = "IP[:PEER_PORT[:API_PORT]]"


def member_of(text: str) -> CoordinatorRecord:
    """Parse ID=IP[:PEER_PORT[:API_PORT]]; an IPv6 address stands in brackets. Raises InvalidRequest."""
    member_id, separator, rest = text.partition("=")
    if rest.startswith("["):
        address, _, ports = rest[1:].partition("]")
        ports = ports.removeprefix(":")
    else:
        address, _, ports = rest.partition(":")
    numbers = [port for port in ports.split(":") if port]
    if not separator or not member_id or len(numbers) > 2 or not all(map(_is_port, numbers)):
        raise InvalidRequest(f"member: expected ID=IP[:PEER_PORT[:API_PORT]], got {text!r}.")
    peer_port, api_port = [*map(int, numbers), *(PEER_PORT, API_PORT)[len(numbers) :]]
    return CoordinatorRecord(
        coordinator_id=member_id, address=address, peer_port=peer_port, api_port=api_port
    )


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65535
