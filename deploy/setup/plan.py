"""The plan for this machine: names, addresses, ports and directories, given or detected.

Tested by tests/unit/deploy/test_how_to_run.py.
"""

import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ca.errors import InvalidRequest
from ca.hostnames import authority_of
from ca.identity import Identity, Role, check_address, check_member_id, check_port
from metadata.model.records import CoordinatorRecord

DATA: Final = Path("/var/lib/filestore")
ROLES: Final = ("coordinator", "node")
_NOWHERE: Final = (
    "192.0.2.1"  # RFC 5737: no packet is sent there, but the kernel chooses the source address for it
)
_LABEL: Final = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlan:
    """One machine. `address` is where others reach both of its members."""

    name: str
    address: str
    data: Path
    peer_port: int
    api_port: int
    node_peer_port: int
    node_api_port: int
    zone: str = ""

    @property
    def coordinator_data(self) -> Path:
        """The directory of the coordinator."""
        return self.data / "coordinator"

    @property
    def node_data(self) -> Path:
        """The directory of the node."""
        return self.data / "node"

    @property
    def record(self) -> CoordinatorRecord:
        """The coordinator, as the cluster knows it."""
        return CoordinatorRecord(
            coordinator_id=self.name, address=self.address, peer_port=self.peer_port, api_port=self.api_port
        )

    @property
    def node_url(self) -> str:
        """Return the node's URL for clients."""
        return url_at(self.address, self.node_api_port)

    def directory(self, role: str) -> Path:
        """Return the directory of one of ROLES."""
        return self.data / role

    def canonical(self) -> "MachinePlan":
        """Return the plan in canonical form. Raises InvalidRequest naming the option."""
        ports = {
            "peer_port": self.peer_port,
            "api_port": self.api_port,
            "node_peer_port": self.node_peer_port,
            "node_api_port": self.node_api_port,
        }
        for option, port in ports.items():
            check_port(port, option)
        if len(set(ports.values())) < len(ports):
            raise InvalidRequest("node_api_port: the four ports of a machine must differ")
        check_member_id(self.name, "name")
        return replace(self, address=check_address(self.address, development=True, field="address"))


def url_at(address: str, port: int) -> str:
    """The https URL of a client port."""
    return f"https://{authority_of(address, port)}"


def identity_of(cluster: str, coordinator_id: str) -> Identity:
    """Return the identity in a coordinator's certificate."""
    return Identity(cluster, Role.COORDINATOR, coordinator_id)


def own_name() -> str:
    """The first part of this machine's name, as the name of its members; "" where it cannot be one."""
    label = _LABEL.sub("-", socket.gethostname().partition(".")[0].lower())[:63].strip("-")
    return label if label != "localhost" else ""


def own_address(towards: str = _NOWHERE) -> str:
    """Return the source address for connections to another machine; "" without a route.

    `towards` is an address or a name. Blocks during a name lookup.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return ""
