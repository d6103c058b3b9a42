"""The data directory of a coordinator: its files, and the content of coordinator.json.

Tested by tests/unit/coordinator/admin/test_setup.py.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ca.errors import Conflict
from ca.identity import Identity, Role
from ca.secretfiles import read_secret, systemd_credential, write_durable
from ca.tls import Credential, read_roots
from ca.usertoken import SERVICE_TTL_SECONDS_MAX, TTL_SECONDS_MAX
from metadata.model.jobs import SCHEDULE_S_MAX, GraceSeconds
from metadata.model.records import CoordinatorRecord
from runtime.json_files import decode_foreign

COORDINATORS_MAX = 7  # more would only slow every change down
DOWN_AFTER_S = 600.0  # a reboot and a file system check cause no new copies
GC_GRACE_S = 86_400
DIGEST_S = 10.0  # 2000 rows each: a million files are compared in two to three hours


# Members reject user tokens with a longer life, even if their signer allows it.
TokenTtl = Annotated[int, Meta(ge=60, le=TTL_SECONDS_MAX)]
ServiceTokenTtl = Annotated[int, Meta(ge=60, le=SERVICE_TTL_SECONDS_MAX)]
DownAfter = Annotated[float, Meta(ge=1, le=7 * 86_400)]


class NotInitialised(Conflict):
    """The directory contains no coordinator; `filestore coordinator init` creates one."""


class CoordinatorConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """coordinator.json: the identity of this member, and the coordinators at its start.

    Default values are not written: the previous release rejects unknown fields, and may be installed again.

    `own_record` is set if this member is not in the list because it joined later. Every `digest_s` the leader
    lets all members compare a part of their state. A node that is silent, or whose disk fails, for
    `down_after_s` is recorded as down, and its replicas are created again on other nodes. Blobs without files
    are kept for `gc_grace_s`. A user's token lives for `token_ttl_s_max` at most; that of a user with the
    role `service` for `service_token_ttl_s_max`. `schedules`: seconds between two runs of a job, by its name;
    0: it runs when it is triggered.
    """

    id: str
    cluster: str
    members: list[CoordinatorRecord]
    own_record: CoordinatorRecord | None = None
    digest_s: Annotated[float, Meta(ge=0.1, le=86_400)] = DIGEST_S
    down_after_s: DownAfter = DOWN_AFTER_S
    gc_grace_s: GraceSeconds = GC_GRACE_S
    token_ttl_s_max: TokenTtl = TTL_SECONDS_MAX
    service_token_ttl_s_max: ServiceTokenTtl = SERVICE_TTL_SECONDS_MAX
    schedules: dict[str, Annotated[float, Meta(ge=0, le=SCHEDULE_S_MAX)]] = {}

    @property
    def identity(self) -> Identity:
        """Return the identity in this member's certificate."""
        return Identity(self.cluster, Role.COORDINATOR, self.id)

    @property
    def own(self) -> CoordinatorRecord:
        """This member's own addresses."""
        if self.own_record is not None:
            return self.own_record
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
        self.genesis = data / "genesis.bin"
        self.known = data / "coordinators.json"
        self.instance = data / "instance.json"
        self.instances = data / "instances.json"
        self.diverged = data / "diverged"
        self.differences = data / "differences.json"
        self.time = data / "time.json"
        self.log = data / "log"
        self.snapshots = data / "snapshots"
        self.backups = data / "backups"
        self.offsite = data / "offsite.json"
        self.state = data / "state.sqlite"
        self.state_damaged = data / "state.damaged"
        self.rebuilt = data / "state.rebuilt"
        self.audit = data / "audit.log"
        self.credential_path = data / "credential.pem"

    def credential(self) -> Credential:
        """Return key, certificate and trusted root of this coordinator."""
        return Credential(self.credential_path, read_roots(self.root))

    def read_cluster_key(self) -> bytes:
        """Return the key that the cluster's own keys are wrapped with.

        It comes from systemd, otherwise from the data directory. Raises UnsafeSecretFile.
        """
        return read_secret(systemd_credential(self.cluster_key.name) or self.cluster_key)

    def read_config(self) -> CoordinatorConfig:
        """Read coordinator.json. Raises NotInitialised."""
        try:
            return decode_foreign(self.config.read_bytes(), CoordinatorConfig)
        except FileNotFoundError:
            raise NotInitialised(
                f"{self.data} contains no coordinator. Run `filestore coordinator init`"
            ) from None
        except OSError as error:
            raise NotInitialised(
                f"{self.config} cannot be read: {error.strerror}. Check the disk."
            ) from error
        except msgspec.MsgspecError as error:
            raise NotInitialised(
                f"{self.config} cannot be read: {error}. Restore it from a backup, or write it again, "
                "following the example of another coordinator."
            ) from error

    def write_config(self, config: CoordinatorConfig) -> None:
        """Replace coordinator.json.

        Creating a coordinator writes it last: from then on the directory is one.
        """
        write_durable(self.config, msgspec.json.format(msgspec.json.encode(config)))
