"""The operator's commands on one coordinator's directory: bundle, snapshot, restore, begin again.

Blocking, no network. A snapshot is a copy of the database: with the bundle of its cluster it makes a new
cluster of one coordinator, to which others are added. A damaged coordinator begins again with a new id: with
the old one it would have forgotten its votes.
"""

import asyncio
import contextlib
import errno
import os
import re
import secrets
import shutil
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from ca.certificates import IntermediateEnded, certificates_in
from ca.errors import Conflict, Internal, InvalidRequest, Unauthorized
from ca.keys import WrongClusterKey, unwrap
from ca.secretfiles import SECRET_MODE, create_secret, reserve_secret, write_secret
from ca.setuptoken import is_of_cluster_key
from coordinator.admin.authority import INTERMEDIATE_PURPOSE, IntermediateCredential, SigningAuthority
from coordinator.admin.setup import (
    COPY_GENESIS,
    AdminDisabled,
    Bundle,
    begin,
    bootstrap_of,
    check_empty,
    check_signs,
    config_of,
    mint_admin_token,
    new_leaf,
    prepare,
    read_bundle,
    read_genesis,
    write_identity,
)
from coordinator.raft.membership import encode_membership
from coordinator.raft.messages import Entry, EntryKind, HardState, Members, MembershipChange, SnapshotMeta
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles, NotInitialised
from coordinator.storage.database import newest_key
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.snapshot_store import describe
from coordinator.storage.state_backup import copy_database
from coordinator.storage.state_store import Store
from coordinator.storage.stored_sums import SUMS
from metadata.model.records import REMOVED, VOTER, CoordinatorRecord
from metadata.protocol.commands import Envelope, RecordCoordinators, RecordRestore, encode_envelope
from metadata.rpc.roster import read_known
from runtime.audit import AuditLog
from runtime.clock import now_ms
from runtime.disk import while_stopped
from runtime.file_digests import digest_beside, matches_digest, write_digest
from runtime.sqlite import DATABASE_ERRORS
from runtime.stopping import NEVER, Stop

COPY_BYTES = 1 << 20
HISTORY_DIGITS = 12
STATE_FILES = tuple(
    f"state.sqlite{ending}" for ending in ("", "-wal", "-shm", SUMS, ".install", ".install.sha256", ".origin")
)
_NEWER_ELSEWHERE = (
    "The later certificates that this directory knew cannot be read. Create a bundle on another "
    "coordinator, and use it to create a new coordinator in its own directory."
)
_ASIDE_PREFIX = "damaged-"  # prefix of directories with replaced files, followed by their name
_INSTANCE_FILES = ("instance.json", "instance.json.copy", "instances.json")  # of the earlier process here
_NAMED = re.compile(r"(|.+-)([0-9]{8}T[0-9]{6})-([0-9]{1,19})\.sqlite")  # prefix, time, index
_MARKS = ("diverged", "differences.json", "state.damaged", "state.rebuilt")
MOVED_ASIDE = ("log", *STATE_FILES, *_INSTANCE_FILES, "snapshots", *_MARKS)


def write_bundle(data: Path, output: Path) -> None:
    """Write a current bundle, for a coordinator that is added later.

    It is secret. Raises Conflict, InvalidRequest if no coordinator could start with it.
    """
    files = CoordinatorFiles(data)
    bundle = own_bundle(files, files.read_config())
    check_signs(bundle)
    create_secret(output, msgspec.msgpack.encode(bundle))


def write_snapshot(data: Path, output: Path) -> SnapshotMeta:
    """Copy the state of this coordinator, while it runs or not; return its position in the log.

    The file is for its owner alone: it holds wrapped keys and digests of tokens. Its sha256 is written to
    another file. Raises Conflict if it exists.
    """
    files = CoordinatorFiles(data)
    files.read_config()
    if not files.state.exists():
        raise NotInitialised(f"{files.state} is missing: this coordinator has no state to copy")
    # after a crash it could be mistaken for that of the new file
    if (digest := digest_beside(output)).exists():
        raise Conflict(f"{digest} already exists and is not overwritten")
    try:
        reserve_secret(output)
    except FileExistsError as error:
        raise Conflict(f"{output} already exists and is not overwritten") from error
    try:
        copy_database(files.state, output)
    except DATABASE_ERRORS as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(output)) from error
        raise Internal(f"{files.state} cannot be copied: {error}.") from error
    try:
        write_digest(output)
    except BaseException:
        output.unlink(missing_ok=True)
        raise
    return describe(output)


class SnapshotFacts(Struct, frozen=True, kw_only=True):
    """The content of a snapshot. `newer`: newer snapshots of the same history in its directory."""

    taken_at_ms: int
    log_index: int
    files: int
    nodes: list[str]
    coordinators: list[str]
    newer: list[str]


def snapshot_facts(snapshot: Path) -> SnapshotFacts:
    """Read what is in a snapshot. Raises InvalidRequest if it cannot be read. Blocks."""
    try:
        with closing(sqlite3.connect(f"{snapshot.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            (files,) = db.execute("SELECT COALESCE(SUM(file_count), 0) FROM buckets").fetchone()
            nodes = db.execute("SELECT node_id FROM nodes ORDER BY node_id").fetchall()
            members = db.execute(
                "SELECT coordinator_id FROM coordinators WHERE role <> ? ORDER BY coordinator_id", (REMOVED,)
            ).fetchall()
    except DATABASE_ERRORS as error:
        raise InvalidRequest(f"snapshot: {snapshot} is not a snapshot of a coordinator") from error
    log_index = describe(snapshot).index
    return SnapshotFacts(
        taken_at_ms=_taken_at_ms(snapshot),
        log_index=log_index,
        files=files,
        nodes=[node_id for (node_id,) in nodes],
        coordinators=[coordinator_id for (coordinator_id,) in members],
        newer=_newer_beside(snapshot, log_index),
    )


def _taken_at_ms(snapshot: Path) -> int:
    """Return the time of a snapshot by its name, else the time of its last change."""
    if named := _NAMED.fullmatch(snapshot.name):
        with contextlib.suppress(ValueError):
            taken = datetime.strptime(named[2], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
            return int(taken.timestamp() * 1000)
    return int(snapshot.stat().st_mtime * 1000)


def _newer_beside(snapshot: Path, log_index: int) -> list[str]:
    """Return the newer snapshots in the same directory whose names start in the same way, by index."""
    own = _NAMED.fullmatch(snapshot.name)
    if own is None:
        return []
    found = [match for name in os.listdir(snapshot.parent) if (match := _NAMED.fullmatch(name))]
    newer = [match for match in found if match[1] == own[1] and int(match[3]) > log_index]
    return [match[0] for match in sorted(newer, key=lambda match: int(match[3]))]


def restore(data: Path, *, snapshot: Path, bundle_path: Path, own: CoordinatorRecord) -> Path | None:
    """Make a new cluster of this one coordinator from a snapshot.

    Returns the path of its admin token; None if the first admin is disabled, since others have tokens.

    Files, users and tokens are those of the snapshot; its coordinators count as removed. The id must not be
    one of theirs. It has no certificate if every known intermediate has ended. Raises Conflict,
    InvalidRequest.
    """
    files = CoordinatorFiles(data)
    check_empty(files)
    bundle = read_bundle(bundle_path)
    own = msgspec.structs.replace(own, role=VOTER)
    config = msgspec.structs.replace(config_of(bundle, own.coordinator_id, own), members=[own])
    prepare(files)
    before = set(os.listdir(data))
    try:
        copy = files.data / "state.sqlite.restoring"
        copy_durably(snapshot, copy)
        taken = _checked(copy, snapshot, bundle, own)
        copy.replace(files.state)
        write_identity(files, bundle)
        _begin_alone(files, config, bundle, taken.index + 2, taken.term + 1)
        files.write_config(config)
        _audit(files, snapshot, taken.index)
        with contextlib.suppress(AdminDisabled):
            write_secret(files.admin_token, mint_admin_token(data).encode("ascii") + b"\n")
    except BaseException:
        with contextlib.suppress(OSError):
            for name in set(os.listdir(data)) - before:  # so that it can be repeated
                _remove(data / name)
        raise
    return files.admin_token if files.admin_token.exists() else None


def _audit(files: CoordinatorFiles, snapshot: Path, log_index: int) -> None:
    """Note the restore where the actions of people are noted: what followed the snapshot is in older logs."""
    log = AuditLog.of_people(files.audit)
    restored = f"{snapshot.name} at entry {log_index}"
    log.record("restore_cluster", principal="operator", object=restored, outcome="ok", request_id="")
    log.close()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def begin_again(data: Path, own: CoordinatorRecord) -> Path:
    """Set log and state of this coordinator aside and start again under another id; return their new place.

    It must have been removed from the cluster under its old id, must not run, and waits to be added. Raises
    Conflict, InvalidRequest, NotInitialised.
    """
    files = CoordinatorFiles(data)
    earlier = files.read_config()
    config = check_rebuildable(files, own)
    bundle = own_bundle(files, earlier)
    aside = data / f"{_ASIDE_PREFIX}{earlier.id}-{now_ms()}"
    aside.mkdir(mode=0o700)
    for name in MOVED_ASIDE:
        if (data / name).exists():
            (data / name).rename(aside / name)
    begin(files, config, bundle)
    return aside


def has_begun_again(data: Path) -> bool:
    """Return whether `begin_again` has set a log and a state aside here."""
    return any(data.glob(f"{_ASIDE_PREFIX}*"))


def check_rebuildable(files: CoordinatorFiles, own: CoordinatorRecord) -> CoordinatorConfig:
    """Return the coordinator.json of `begin_again`, which would raise the same errors."""
    earlier = files.read_config()
    bundle = own_bundle(files, earlier)
    config = config_of(bundle, own.coordinator_id, own)
    try:
        check_signs(bundle)
    except InvalidRequest as error:
        if bundle.intermediate is not None:
            raise
        raise InvalidRequest(f"{error.details}. {_NEWER_ELSEWHERE}") from error
    _check_new_id(files.state, own.coordinator_id)
    if files.log.is_dir():
        with while_stopped(files.log):
            pass
    return msgspec.structs.replace(
        earlier, id=config.id, members=config.members, own_record=config.own_record
    )


def _check_new_id(state: Path, coordinator_id: str) -> None:
    """Check the new id, as far as this state can be read and is recent; only the cluster knows for sure."""
    with contextlib.suppress(*DATABASE_ERRORS), closing(_opened(state)) as db:
        if _knows(db, coordinator_id):
            raise InvalidRequest(f"id: {coordinator_id} is or was another coordinator of this cluster")


def _knows(db: sqlite3.Connection, coordinator_id: str) -> bool:
    row = db.execute("SELECT 1 FROM coordinators WHERE coordinator_id = ?", (coordinator_id,)).fetchone()
    return row is not None


def _opened(state: Path) -> sqlite3.Connection:
    """Open a state file, whether its coordinator runs or not; a missing one is not created."""
    return sqlite3.connect(f"{state.absolute().as_uri()}?mode=rw", uri=True)


def own_bundle(files: CoordinatorFiles, config: CoordinatorConfig) -> Bundle:
    """Return a current bundle, as this directory knows it. Raises NotInitialised, InvalidRequest."""
    if not files.genesis.exists():
        raise NotInitialised(f"{files.genesis} is missing: {COPY_GENESIS}")
    return Bundle(
        cluster_key=files.read_cluster_key(),
        genesis=read_genesis(files),
        members=read_known(files.known, config.members),
        intermediate=_own_intermediate(files),
    )


def _own_intermediate(files: CoordinatorFiles) -> IntermediateCredential | None:
    """Return the latest intermediate in the state, and in files set aside by an interrupted `begin_again`.

    None if none can be read.
    """
    aside = [each / files.state.name for each in files.data.glob(f"{_ASIDE_PREFIX}*")]
    found = [each for each in map(_newest_intermediate, (files.state, *aside)) if each is not None]
    return max(found, key=lambda each: certificates_in(each.pem)[0].not_valid_after_utc, default=None)


def _newer_intermediate(files: CoordinatorFiles, bundle: Bundle) -> IntermediateCredential | None:
    """Return the bundle's intermediate if it signs longer than the snapshot's, which may have expired."""
    known = _newest_intermediate(files.state)
    if bundle.intermediate is None or known is None:
        return bundle.intermediate
    ends = [certificates_in(each.pem)[0].not_valid_after_utc for each in (known, bundle.intermediate)]
    return bundle.intermediate if ends[1] > ends[0] else None


def _newest_intermediate(state: Path) -> IntermediateCredential | None:
    """Return the newest intermediate in this state, in use or not; None if the state cannot be read."""
    try:
        with closing(_opened(state)) as db:
            found = newest_key(db, INTERMEDIATE_PURPOSE)
    except DATABASE_ERRORS:
        return None
    return None if found is None else IntermediateCredential(*found[1:])


def copy_durably(source: Path, target: Path, stop: Stop = NEVER) -> None:
    """Copy to a new file for its owner alone; blocks until the copy is durable.

    Raises FileExistsError, also for a symbolic link; WorkStopped, which leaves a part.
    """
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, SECRET_MODE)
    with source.open("rb") as original, open(descriptor, "wb") as copy:
        while data := original.read(COPY_BYTES):
            copy.write(data)
            stop.check()
        copy.flush()
        os.fsync(copy.fileno())


def _checked(copy: Path, snapshot: Path, bundle: Bundle, own: CoordinatorRecord) -> SnapshotMeta:
    """Return the position of a valid snapshot of this cluster. Raises InvalidRequest."""
    if not matches_digest(copy, named_as=snapshot):
        raise InvalidRequest(f"snapshot: {snapshot} is damaged: it does not match {digest_beside(snapshot)}")
    command = bootstrap_of(bundle.genesis)
    try:
        with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            if db.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                raise InvalidRequest(f"snapshot: {snapshot} is damaged")
            root_pem = db.execute("SELECT root_pem FROM cluster").fetchone()[0]
            is_known = _knows(db, own.coordinator_id)
            newest = newest_key(db, INTERMEDIATE_PURPOSE)
    except (*DATABASE_ERRORS, TypeError) as error:
        raise InvalidRequest(f"snapshot: {snapshot} is not a snapshot of a coordinator") from error
    if root_pem != command.root_pem:
        raise InvalidRequest("snapshot: it is of another cluster than the bundle")
    if is_known:
        raise InvalidRequest(f"id: {own.coordinator_id} is or was another coordinator of this cluster")
    try:
        unwrap(bundle.cluster_key, newest[2] if newest else b"", purpose=INTERMEDIATE_PURPOSE)
    except WrongClusterKey as error:
        raise InvalidRequest("bundle: its key does not decrypt the snapshot") from error
    return describe(copy)


def _begin_alone(
    files: CoordinatorFiles, config: CoordinatorConfig, bundle: Bundle, index: int, term: int
) -> None:
    """Make the first changes of the new cluster: another history, and this coordinator as its only one.

    The log begins after them.
    """
    own, at_ms = config.own, now_ms()
    newer = _newer_intermediate(files, bundle) or IntermediateCredential("", b"")
    command = RecordRestore(
        history=secrets.token_hex(HISTORY_DIGITS // 2),
        intermediate_pem=newer.pem,
        intermediate_wrapped=newer.wrapped,
    )
    payload = encode_envelope(Envelope(0, 0, 0, at_ms, RecordCoordinators(coordinators=[own])))
    change = MembershipChange(Members((own.coordinator_id,)), payload)
    first = [
        Entry(index - 1, term, EntryKind.COMMAND, encode_envelope(Envelope(0, 0, 0, at_ms, command))),
        Entry(index, term, EntryKind.MEMBERSHIP, encode_membership(change)),
    ]
    store = Store(files.state)
    try:
        store.apply(first)
        root_pem = bootstrap_of(bundle.genesis).root_pem
        authority = SigningAuthority(store, bundle.cluster_key, config.cluster, root_pem)
        with contextlib.suppress(IntermediateEnded):  # `renew-certificate` makes one with the root key
            new_leaf(files, config, authority.sign_leaf)
    finally:
        store.close()
    log = SegmentLog.open(files.log)
    try:
        log.reset(HardState(term, "", index), index, term)
    finally:
        log.close()


class Bundles:
    """Bundles that a running coordinator sends to machines which join by a setup token.

    A bundle contains the cluster key. So it is only sent in return for a secret that was made with that key,
    and never through another member: the machine is connected to this process, over TLS.
    """

    def __init__(self, files: CoordinatorFiles, config: CoordinatorConfig) -> None:
        self._files = files
        self._config = config

    async def require_of_cluster_key(self, token_id: str, secret: str) -> None:
        """Raise Unauthorized for a token that has ended, or was not made with the cluster key."""
        key = await asyncio.to_thread(self._files.read_cluster_key)
        if not is_of_cluster_key(key, token_id, secret, at_s=time.time()):
            raise Unauthorized("a join token that was not made on a coordinator")

    async def new(self) -> bytes:
        """Return a current bundle. Raises InvalidRequest if no coordinator could start with it."""
        return await asyncio.to_thread(self._made)

    def _made(self) -> bytes:
        bundle = own_bundle(self._files, self._config)
        check_signs(bundle)
        return msgspec.msgpack.encode(bundle)
