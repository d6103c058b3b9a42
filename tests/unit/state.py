"""A state machine in a fresh database, to apply commands to and ask questions of."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from coordinator.raft.membership import encode_membership
from coordinator.raft.messages import Entry, EntryKind, Members, MembershipChange
from coordinator.storage.state_store import Store, members_of
from metadata.model.records import (
    DEFAULT_BUCKET_ID,
    Caller,
    CertificateRecord,
    ClusterView,
    CoordinatorRecord,
    NodeRecord,
)
from metadata.model.rules import RULES
from metadata.protocol import commands, queries
from metadata.protocol.commands import Envelope, Reply

ADMIN = Caller("admin", 1)
HOUR_MS = 3_600_000


class State:
    """Applies one command to a log entry each, at a time that the test moves."""

    def __init__(
        self, path: Path, *, write_quorum: int = 2, rules: int = RULES, store: Store | None = None
    ) -> None:
        self.path = path
        self.store = store or Store(path)
        self.log_index = 0
        self.at_ms = 1_000_000
        self.entries: list[Entry] = []
        self.apply(bootstrap(write_quorum=write_quorum, rules=rules))

    @classmethod
    def over_store(cls, path: Path, store: Store) -> "State":
        """Of a store that has been used before: it goes on there."""
        state = cls.__new__(cls)
        state.path, state.store, state.entries = path, store, []
        state.log_index, state.at_ms = store.applied_index(), 1_000_000
        return state

    def apply(
        self,
        command: commands.AnyCommand,
        *,
        session: int = 0,
        sequence: int = 0,
        acknowledged_below: int = 0,
    ) -> Any:
        """The value that the command replies with, or its refusal as a `Refusal`."""
        self.log_index += 1
        envelope = Envelope(session, sequence, acknowledged_below, self.at_ms, command)
        entry = Entry(self.log_index, 1, EntryKind.COMMAND, commands.encode_envelope(envelope))
        return self.apply_entry(entry)

    def apply_batch(self, *batch: commands.AnyCommand) -> list[Any]:
        """The values of commands that are applied in one transaction."""
        entries = []
        for command in batch:
            self.log_index += 1
            encoded = commands.encode_envelope(Envelope(0, 0, 0, self.at_ms, command))
            entries.append(Entry(self.log_index, 1, EntryKind.COMMAND, encoded))
        self.entries += entries
        return [_value(reply) for reply in self.store.apply(entries)]

    def apply_entry(self, entry: Entry) -> Any:
        """The same for an entry that follows the last one."""
        self.log_index = entry.index
        self.entries.append(entry)
        return _value(self.store.apply([entry])[0])

    def ask(self, query: queries.AnyQuery) -> Any:
        """The value of the answer, or its refusal as a `Refusal`."""
        return _value(self.store.answer(query, at_ms=self.at_ms))

    def dump(self) -> list[str]:
        """The whole database as SQL, to compare two of them."""
        return dump(self.path)

    def user(
        self, user_id: str, *, roles: list[str] | None = None, groups: list[str] | None = None
    ) -> Caller:
        """A caller whose user exists, with a token of its present generation."""
        admit = commands.AdmitUser(caller=ADMIN, user_id=user_id, roles=roles, groups=groups)
        return Caller(user_id, self.apply(admit)["generation"])

    def done(self, command: commands.AnyCommand) -> Any:
        """The value of a command that must not be refused."""
        value = self.apply(command)
        assert not isinstance(value, Refusal), f"{value}: {value.details}"
        return value

    def nodes(self, *node_ids: str) -> None:
        """Let nodes join."""
        for node_id in node_ids:
            self.apply(join_token(f"t-{node_id}"))
            self.apply(join(f"t-{node_id}", node_id))


class Refusal(str):
    """A refusal's code; `details` says more."""

    details: str

    def __new__(cls, code: str, details: str) -> "Refusal":
        made = super().__new__(cls, code)
        made.details = details
        return made


def dump(path: Path) -> list[str]:
    """The whole database as SQL."""
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def bootstrap(*, write_quorum: int = 2, rules: int = RULES) -> commands.Bootstrap:
    """The first command of a log, with keys that are none."""
    return commands.Bootstrap(
        rules=rules,
        cluster="test",
        root_pem="root",
        members=[CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=2)],
        replicas=3,
        write_quorum=write_quorum,
        development=True,
        intermediate_pem="intermediate",
        intermediate_wrapped=b"wrapped",
        user_token_kid="kid",
        user_token_jwk={"kid": "kid"},
        user_token_wrapped=b"wrapped",
        admin_user_id="admin",
    )


def coordinator(coordinator_id: str, *, role: str = "voter", peer_port: int = 1) -> CoordinatorRecord:
    """A coordinator on loopback."""
    return CoordinatorRecord(
        coordinator_id=coordinator_id, address="127.0.0.1", peer_port=peer_port, api_port=2, role=role
    )


def membership(
    index: int, *coordinators: CoordinatorRecord, session: int = 0, members: Members | None = None
) -> Entry:
    """The log entry with which these become the Raft group."""
    command = commands.RecordCoordinators(coordinators=list(coordinators))
    payload = commands.encode_envelope(Envelope(session, 1, 0, 1_000_000, command))
    change = MembershipChange(members or members_of(coordinators), payload)
    return Entry(index, 1, EntryKind.MEMBERSHIP, encode_membership(change))


def join_token(token_id: str, **changes: Any) -> commands.CreateJoinToken:
    """A token that admits one node within an hour."""
    command = commands.CreateJoinToken(
        caller=ADMIN, token_id=token_id, secret_sha256="digest", node_id="", uses_max=1, ttl_seconds=3600
    )
    return msgspec.structs.replace(command, **changes)


def certificate(serial: str, key: str = "key") -> CertificateRecord:
    """A certificate that is none."""
    return CertificateRecord(
        serial=serial, pem=f"pem {serial}", public_key_sha256=key, not_before_ms=0, not_after_ms=10**12
    )


def join(token_id: str, node_id: str, **changes: Any) -> commands.JoinNode:
    """A join with the secret of `join_token`."""
    command = commands.JoinNode(
        token_id=token_id,
        secret_sha256="digest",
        node_id=node_id,
        address="127.0.0.1",
        api_port=7000,
        certificate=certificate(f"serial-{node_id}"),
    )
    return msgspec.structs.replace(command, **changes)


def create(caller: Caller, file_uuid: str, **changes: Any) -> commands.CreateProjectFile:
    """A project file of unknown size in the default bucket."""
    command = commands.CreateProjectFile(
        caller=caller,
        file_uuid=file_uuid,
        bucket_id=DEFAULT_BUCKET_ID,
        filename="lab.gns3project",
        content_type="application/octet-stream",
        size_bytes=None,
        expected_sha256="",
        retention_hours=None,
        project_id="p1",
        project_name="",
        version_tag="",
        compression="none",
        include_images=False,
        include_snapshots=False,
        is_read_only=False,
        keep_compute_ids=False,
        reset_mac_addresses=False,
        placement=["n1", "n2", "n3"],
    )
    return msgspec.structs.replace(command, **changes)


def create_vm(caller: Caller, file_uuid: str, **changes: Any) -> commands.CreateVm:
    """A disk image of unknown size in the default bucket."""
    command = commands.CreateVm(
        caller=caller,
        file_uuid=file_uuid,
        bucket_id=DEFAULT_BUCKET_ID,
        filename="disk.qcow2",
        content_type="application/octet-stream",
        size_bytes=None,
        expected_sha256="",
        retention_hours=None,
        virt_type="qemu",
        format="qcow2",
        vcpus=1,
        ram_mb=512,
        extra_attributes_json="{}",
        placement=["n1", "n2", "n3"],
    )
    return msgspec.structs.replace(command, **changes)


def create_backup(caller: Caller, file_uuid: str, **changes: Any) -> commands.CreateBackup:
    """A full backup of unknown size in the default bucket."""
    command = commands.CreateBackup(
        caller=caller,
        file_uuid=file_uuid,
        bucket_id=DEFAULT_BUCKET_ID,
        filename="backup.tar",
        content_type="application/octet-stream",
        size_bytes=None,
        expected_sha256="",
        retention_hours=None,
        backup_type="full",
        is_compressed=False,
        is_encrypted=False,
        parent_backup_uuid="",
        source_node_id="",
        placement=["n1", "n2", "n3"],
    )
    return msgspec.structs.replace(command, **changes)


def create_bucket(caller: Caller, bucket_id: str, **changes: Any) -> commands.CreateBucket:
    """A bucket without a quota, named as its id."""
    command = commands.CreateBucket(caller=caller, bucket_id=bucket_id, name=bucket_id, quota_bytes=0)
    return msgspec.structs.replace(command, **changes)


def grant(
    caller: Caller, on: str, principal: str, permission: Any = "read", **changes: Any
) -> commands.GrantPermission:
    """A lasting permission on `file:ID` or `bucket:ID` for `user:ID`, `group:NAME` or `role:NAME`."""
    target, _, target_id = on.partition(":")
    principal_type, _, principal_id = principal.partition(":")
    command = commands.GrantPermission(
        caller=caller,
        target="bucket" if target == "bucket" else "file",
        target_id=target_id,
        permission_id=f"{on} {principal} {permission}",
        permission=permission,
        principal_type=principal_type,  # type: ignore[arg-type]
        principal_id=principal_id,
        expires_at_ms=None,
    )
    return msgspec.structs.replace(command, **changes)


def list_permissions(caller: Caller, on: str, **changes: Any) -> queries.ListPermissions:
    """The permissions on `file:ID` or `bucket:ID`."""
    target, _, target_id = on.partition(":")
    query = queries.ListPermissions(
        caller=caller, target="bucket" if target == "bucket" else "file", target_id=target_id
    )
    return msgspec.structs.replace(query, **changes)


def withdraw(caller: Caller, on: str, permission_id: str) -> commands.WithdrawPermission:
    """The end of a permission on `file:ID` or `bucket:ID`."""
    target, _, target_id = on.partition(":")
    return commands.WithdrawPermission(
        caller=caller,
        target="bucket" if target == "bucket" else "file",
        target_id=target_id,
        permission_id=permission_id,
    )


def public_token(caller: Caller, file_uuid: str, token_id: str, **changes: Any) -> commands.CreatePublicToken:
    """A link for a day, with the digest `sha-ID`."""
    command = commands.CreatePublicToken(
        caller=caller,
        file_uuid=file_uuid,
        bucket_id="",
        token_id=token_id,
        token_sha256=f"sha-{token_id}",
        expires_at_ms=None,
    )
    return msgspec.structs.replace(command, **changes)


def put_user(user_id: str, **changes: Any) -> commands.PutUser:
    """A change of a user by the admin that leaves everything as it is."""
    command = commands.PutUser(caller=ADMIN, user_id=user_id, roles=None, groups=None, disabled=None)
    return msgspec.structs.replace(command, **changes)


def complete(
    caller: Caller, file_uuid: str, sha256: str, replicas: list[str], *, size_bytes: int = 5
) -> commands.CompleteUpload:
    """The end of an upload."""
    return commands.CompleteUpload(
        caller=caller, file_uuid=file_uuid, blob_sha256=sha256, size_bytes=size_bytes, replicas=replicas
    )


def _value(reply: bytes) -> Any:
    decoded = msgspec.msgpack.decode(reply, type=Reply)
    if decoded.refusal:
        return Refusal(decoded.refusal, decoded.details)
    return msgspec.msgpack.decode(decoded.value)


def cluster_view(
    cluster: str,
    *,
    coordinators: Sequence[CoordinatorRecord] = (),
    nodes: Sequence[NodeRecord] = (),
    replicas: int = 1,
    write_quorum: int = 1,
    revoked_serials: Sequence[str] = (),
) -> ClusterView:
    """The first view of a cluster for development."""
    return ClusterView(
        version=1,
        cluster=cluster,
        root_pem="",
        replicas=replicas,
        write_quorum=write_quorum,
        development=True,
        user_token_keys=[],
        coordinators=list(coordinators),
        nodes=list(nodes),
        revoked_serials=list(revoked_serials),
    )
