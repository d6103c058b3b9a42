"""The data directory of a coordinator: which files lie where, and what coordinator.json says."""

from pathlib import Path

import msgspec
from msgspec import Struct

from ca.errors import Internal
from ca.tls import Credential
from coordinator.records import CoordinatorRecord


class NotInitialised(Internal):
    """The directory holds no coordinator; `filestore coordinator init` makes one."""


class CoordinatorConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """coordinator.json: who this member is and who its peers were when it began."""

    id: str
    cluster: str
    members: list[CoordinatorRecord]

    @property
    def own(self) -> CoordinatorRecord:
        """This member's own addresses."""
        return next(member for member in self.members if member.coordinator_id == self.id)


class CoordinatorFiles:
    """Paths inside a coordinator's data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.config = data / "coordinator.json"
        self.cluster_key = data / "cluster.key"
        self.root = data / "ca.pem"
        self.root_key = data / "root.key"
        self.bundle = data / "cluster.bundle"
        self.admin_token = data / "admin.token"
        self.log = data / "log"
        self.state = data / "state.sqlite"
        self.audit = data / "audit.log"
        self.credential_path = data / "credential.pem"

    def credential(self) -> Credential:
        """Key, certificate and trusted root of this coordinator."""
        return Credential(self.credential_path, self.root.read_text("ascii"))

    def read_config(self) -> CoordinatorConfig:
        """What coordinator.json says. Raises NotInitialised."""
        try:
            return msgspec.json.decode(self.config.read_bytes(), type=CoordinatorConfig)
        except FileNotFoundError:
            raise NotInitialised(
                f"{self.data} holds no coordinator: run `filestore coordinator init`"
            ) from None
