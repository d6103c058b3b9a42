"""The data directory of a node: which files lie where, and what node.json says."""

from pathlib import Path

import msgspec
from msgspec import Struct

from ca.errors import Internal
from ca.secretfiles import write_durable
from ca.tls import Credential
from coordinator.records import CoordinatorRecord


class NotJoined(Internal):
    """The directory holds no node; `filestore node join` makes one."""


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """node.json: who this node is, where it listens, and the coordinators as they were when it joined."""

    id: str
    cluster: str
    address: str
    api_port: int
    peer_port: int
    coordinators: list[CoordinatorRecord]
    zone: str = ""
    weight: int = 100


class NodeFiles:
    """Paths inside a node's data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.config = data / "node.json"
        self.root = data / "ca.pem"
        self.credential_path = data / "credential.pem"
        self.audit = data / "audit.log"

    def credential(self) -> Credential:
        """Key, certificate and trusted root of this node."""
        return Credential(self.credential_path, self.root.read_text("ascii"))

    def read_config(self) -> NodeConfig:
        """What node.json says. Raises NotJoined."""
        try:
            return msgspec.json.decode(self.config.read_bytes(), type=NodeConfig)
        except FileNotFoundError:
            raise NotJoined(f"{self.data} holds no node: run `filestore node join`") from None
        except msgspec.MsgspecError as error:
            raise NotJoined(f"{self.config} cannot be read: {error}") from error

    def write_config(self, config: NodeConfig) -> None:
        """Replace node.json. It comes last when a node joins: with it the directory holds a node."""
        write_durable(self.config, msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")
