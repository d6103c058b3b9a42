"""Trials of a coordinator's data directory: its log, its state, its snapshots and its small files, of which
some were harmed, opened as its process opens them.

The state is that of the entry that it says it is at, or the start is refused. Entries and votes that were
promised are there, or the coordinator knows that it has forgotten some. What it would hand out to another
coordinator, or install, arrives there right, or not at all.
"""

import asyncio
import os
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from ca.errors import FilestoreError, InvalidRequest
from ca.secretfiles import write_durable
from coordinator.admin.authority import SigningAuthority
from coordinator.admin.doctor import examine
from coordinator.admin.offsite import read_offsite
from coordinator.admin.restore import write_snapshot
from coordinator.admin.setup import init_cluster, read_genesis
from coordinator.machine.execution.digests import whole_digest
from coordinator.member import rebuilding
from coordinator.member.open_storage import Ledger
from coordinator.member.rebuilding import note_damage, rebuilt_at_ms
from coordinator.member.state_digests import _read_saved, check_not_diverged
from coordinator.raft.messages import Entry, EntryKind, HardState, SnapshotMeta
from coordinator.server import _opened
from coordinator.storage import segment as form
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.snapshot_origins import write_origin
from coordinator.storage.snapshot_store import SnapshotStore, describe
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import Store
from metadata.model.instance import Instance
from metadata.model.jobs import check_schedules
from metadata.model.records import CoordinatorRecord
from metadata.protocol import commands
from metadata.protocol.commands import Envelope
from metadata.rpc.instances import KnownInstances, count_start
from metadata.rpc.roster import read_known, write_known
from metadata.rpc.tls_contexts import MemberContexts
from runtime.json_files import decode_sealed, encode_sealed
from runtime.sqlite import DATABASE_ERRORS
from tests.healing.harms import Harm
from tests.healing.trial_outcomes import Outcome
from tests.unit.snapshot_files import taken
from tests.unit.state import ADMIN, complete, create, create_bucket, create_vm, grant, join, join_token

CLUSTER: Final = "lab"
CHANGES: Final = 40  # files that come before the earlier state is copied, and as many after
SEGMENT_BYTES: Final = 16 << 10  # of the log, so that it has several
PART_BYTES: Final = 50_000  # of a snapshot that was coming
DATA, SOURCE = "data", "source"
_MEMBERS = [
    CoordinatorRecord(coordinator_id=f"c{n}", address="127.0.0.1", peer_port=7000 + n, api_port=7100 + n)
    for n in (1, 2, 3)
]


class Model(Struct):
    """What the coordinator was left with: `digests` of the state at each entry of its log."""

    digests: dict[int, str] = {}
    term: int = 0
    vote: str = ""
    last: int = 0
    verified: tuple[int, int] = (0, 0)  # a snapshot that waits to be installed
    part: tuple[int, int] = (0, 0)  # one of which a part has come
    config: CoordinatorConfig | None = None
    instances: list[Instance] = []
    known: list[dict[str, Instance]] = []


class _Writer:
    """A coordinator at work: changes go into the log, then into the state."""

    def __init__(self, files: CoordinatorFiles, model: Model) -> None:
        log = SegmentLog.open(files.log, segment_bytes=SEGMENT_BYTES, sync=_no_sync)
        self.ledger = Ledger(log, Store(files.state), SnapshotStore(files.snapshots, files.state))
        self.ledger.store.check()  # so that the sums of its pages are kept
        self._model, self._path = model, files.state
        self.at_ms = 1_000_000

    def apply(self, *batch: commands.AnyCommand) -> None:
        """One entry for each."""
        log, store, model = self.ledger.log, self.ledger.store, self._model
        for command in batch:
            index = log.last_index() + 1
            self.at_ms += 1000
            encoded = commands.encode_envelope(Envelope(0, 0, 0, self.at_ms, command))
            entry = Entry(index, max(model.term, 1), EntryKind.COMMAND, encoded)
            log.append(HardState(max(model.term, 1), model.vote, index - 1), None, [entry], sync=True)
            store.apply([entry])
            model.digests[index] = digest_of(self._path)
            model.last = index

    def change(self, name: str) -> None:
        """Some files come, some users."""
        self.apply(
            create_bucket(ADMIN, f"bucket-{name}"), grant(ADMIN, f"bucket:bucket-{name}", "user:admin")
        )
        for number in range(CHANGES):
            file_uuid = f"{name}-{number}"
            make = create_vm if number % 3 == 0 else create
            self.apply(make(ADMIN, file_uuid))
            if number % 2 == 0:
                sha256 = f"{zlib.crc32(file_uuid.encode()):064x}"
                self.apply(complete(ADMIN, file_uuid, sha256, ["n1", "n2", "n3"]))
            if number % 5 == 0:
                self.apply(
                    commands.AdmitUser(caller=ADMIN, user_id=f"user-{file_uuid}", roles=None, groups=None)
                )


def prepare(directory: Path, seed: int) -> None:
    """`older` and `newer` states of a coordinator, and what is true of the newer one."""
    del seed  # its keys are drawn anew, and nothing else is left to dice
    model, data = Model(), directory / "made"
    directory.mkdir(parents=True)
    init_cluster(data, coordinator_id="c1", cluster=CLUSTER, members=_MEMBERS, development=True)
    files = CoordinatorFiles(data)
    model.config = files.read_config()
    model.digests[1] = digest_of(files.state)
    model.term, model.vote = 3, "c2"
    writer = _Writer(files, model)
    for number in (1, 2, 3):
        writer.apply(join_token(f"t{number}"), join(f"t{number}", f"n{number}"))
    writer.change("first")
    writer.ledger.close()
    writer = _Writer(files, model)
    _note(files, model, origin="c2", starts=1)
    taken(writer.ledger.snapshots, origin="c2")
    write_snapshot(data, _backup(files, 1))
    _keep(data, directory / "older")
    model.term, model.vote = 5, "c3"
    writer.change("second")
    writer.ledger.close()
    writer = _Writer(files, model)  # its state lies in the file now, and not in the WAL alone
    writer.apply(create_bucket(ADMIN, "bucket-last"))
    _note(files, model, origin="c3", starts=2)
    taken(writer.ledger.snapshots, origin="")
    write_snapshot(data, _backup(files, 2))
    _keep(data, directory / "newer")
    last = model.last
    model.verified = _future(writer, directory, "third")
    model.part = _future(writer, directory, "fourth")
    model.last = last
    _lay_down(directory)
    writer.ledger.close()
    (directory / "model.json").write_bytes(msgspec.json.encode(model))
    shutil.rmtree(data)


def try_it(directory: Path, model_path: Path, harms: Sequence[Harm]) -> Outcome:
    """What comes of the coordinator in this directory, of which some files were harmed."""
    outcome = Outcome()
    model = msgspec.json.decode(model_path.read_bytes(), type=Model)
    files = CoordinatorFiles(directory / DATA)
    rebuilding.SILENCE_S = 0.2  # nobody else runs
    with outcome.refusing("doctor"):
        examine(files, deep=True)
    _read_small_files(files, model, harms, outcome)
    _try_snapshots(files, model, model_path.parent / SOURCE, outcome)
    for life in ("first start", "second start"):
        with outcome.refusing(life), _begun(files, model) as ledger:
            _judge(ledger, files, model, harms, outcome)
    _try_installation(files, model, harms, outcome)
    return outcome


@contextmanager
def _begun(files: CoordinatorFiles, model: Model) -> Iterator[Ledger]:
    """The log and the state, as a process has them; what that finds damaged, the next one builds again."""
    assert model.config is not None
    check_not_diverged(files.diverged)
    for attempt in (1, 2):
        ledger = asyncio.run(_opened(files, model.config, _no_sync))
        try:
            _look_all_over(ledger)
        except StateDamaged as damage:
            note_damage(files, damage)
            ledger.close()
            if attempt == 2:
                raise
            continue
        try:
            yield ledger
        finally:
            ledger.close()
        return


def _look_all_over(ledger: Ledger) -> None:
    """What `check_state` does beside everything else, at once."""
    while not ledger.store.compare_pages():
        pass
    for table in ledger.store.tables():
        ledger.store.compare_indexes(table, threading.Event())


def _judge(
    ledger: Ledger, files: CoordinatorFiles, model: Model, harms: Sequence[Harm], outcome: Outcome
) -> None:
    """Is the state that of its entry, and does the member know what it has promised?"""
    index, _ = ledger.store.applied()
    if model.digests.get(index) != digest_of(files.state):
        if _has_no_witness(harms):
            outcome.refusals.append("only the comparison with other members finds this")
        else:
            outcome.faults.append(f"the state at {index} is not what the log builds")
    hard_state, promised = ledger.log.hard_state, ledger.log.promised
    has_forgotten = promised.lost_term >= model.term
    if has_forgotten:
        outcome.refusals.append("it knows that it has forgotten something")
        return
    if hard_state.term < model.term or (hard_state.term == model.term and hard_state.vote != model.vote):
        outcome.faults.append(f"it has forgotten its vote: {hard_state}, {model.term} {model.vote!r}")
    if ledger.log.last_index() < model.last and not _is_lost_twice(harms):
        outcome.faults.append(f"entries behind {ledger.log.last_index()} are lost, of {model.last}")
    SigningAuthority(
        ledger.store, files.read_cluster_key(), CLUSTER, files.credential().root_pem
    ).require_key()


def _is_lost_twice(harms: Sequence[Harm]) -> bool:
    """Whether both that hold the last entries were harmed: the log, and the state that it built."""
    kinds = [hit.kind for hit in harms]
    return any(kind.startswith("log/") for kind in kinds) and any("state.sqlite" in kind for kind in kinds)


def _has_no_witness(harms: Sequence[Harm]) -> bool:
    """Whether the state was harmed together with the checksums of its pages, which alone are beside it."""
    kinds = {hit.kind for hit in harms}
    return {"state.sqlite", "state.sqlite.sums"} <= kinds


def _read_small_files(files: CoordinatorFiles, model: Model, harms: Sequence[Harm], outcome: Outcome) -> None:
    """As a start reads them."""
    assert model.config is not None
    with outcome.refusing("coordinator.json"):
        check_schedules(files.read_config().schedules)
    with outcome.refusing("offsite.json"):
        read_offsite(files)
    with outcome.refusing("credential"):
        contexts = MemberContexts(files.credential(), model.config.identity, takes_expired=True)
        contexts.credential.require_address(model.config.own.address)
    with outcome.refusing("genesis"):
        read_genesis(files)
    read_known(files.known, model.config.members)
    rebuilt_at_ms(files.rebuilt)
    _read_saved(files.differences)
    known = KnownInstances(files.instances, "c1")
    known.read()
    if known._known and known._known not in model.known:
        outcome.faults.append(f"instances.json says {known._known}")
    last = model.instances[-1]
    instance = count_start(files.instance, "c1")
    is_harmed = (
        sum(hit.touches(name) for hit in harms for name in ("instance.json", "instance.json.copy")) > 1
    )
    if instance is not None and not is_harmed and not last.is_followed_by(instance):
        outcome.faults.append(f"this start is {instance}, the one before was {last}")


def _try_snapshots(files: CoordinatorFiles, model: Model, source: Path, outcome: Outcome) -> None:
    """Another coordinator fetches what is handed out here; this one goes on with what has come in part."""
    aside = files.data.parent / "aside"
    with outcome.refusing("snapshot"):
        handing_out = SnapshotStore(files.snapshots, files.state)
        if (meta := handing_out.newest()) is not None:
            _fetch(
                handing_out, SnapshotStore(aside / "fetched", aside / "state.sqlite"), meta, model, outcome
            )
    with outcome.refusing("part of a snapshot"):
        shutil.copytree(files.snapshots, aside / "coming")
        coming = SnapshotStore(aside / "coming", aside / "other.sqlite")
        _fetch(SnapshotStore(source, aside / "source.sqlite"), coming, _meta(source), model, outcome)


def _fetch(
    source: SnapshotStore, target: SnapshotStore, meta: SnapshotMeta, model: Model, outcome: Outcome
) -> None:
    """What is verified in the end is right."""
    incoming = target.begin_incoming(meta, "c2")
    while not incoming.is_complete:
        incoming.add(source.chunk(meta.index, meta.term, incoming.offset))
    incoming.finish()
    target.place(meta)
    found = target.find_unfinished()
    if found is None:
        outcome.refusals.append("snapshot: it was not installed")
    elif digest_of(target._intent_path, at_rest=True) != model.digests[found.index]:
        outcome.faults.append(f"the snapshot at {found.index} is not that state")


def _try_installation(files: CoordinatorFiles, model: Model, harms: Sequence[Harm], outcome: Outcome) -> None:
    """A snapshot that had been verified becomes the state at the next start, or what was there goes on."""
    index, term = model.verified
    with outcome.refusing("installation"):
        snapshots = SnapshotStore(files.snapshots, files.state)
        verified = files.snapshots / f"{index}-{term}.verified"
        if not verified.exists():
            return
        snapshots.place(SnapshotMeta(index, term, describe_members(verified)))
        with _begun(files, model) as ledger:
            _judge(ledger, files, model, harms, outcome)


def describe_members(path: Path) -> Any:
    """Whom a snapshot names; nobody reads it before it is looked at once more."""
    try:
        return describe(path).members
    except (*DATABASE_ERRORS, FilestoreError):
        raise InvalidRequest("the snapshot is no database any more") from None


def digest_of(path: Path, *, at_rest: bool = False) -> str:
    """The digest of all rows of a state."""
    options = "mode=ro&immutable=1" if at_rest else "mode=ro"
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, isolation_level=None)
    ) as db:
        db.execute("BEGIN")
        return whole_digest(db, pause=lambda: None)


def _note(files: CoordinatorFiles, model: Model, *, origin: str, starts: int) -> None:
    """The small files of a coordinator that has run for a while."""
    write_known(files.known, _MEMBERS[: starts + 1])
    for _ in range(starts):
        instance = count_start(files.instance, "c1")
        assert instance is not None
        model.instances.append(instance)
    known = KnownInstances(files.instances, "c1")

    async def meet() -> None:
        for other in ("c2", "c3"):
            await known.admit(other, Instance(f"{zlib.crc32(other.encode()):016x}", starts, f"{starts:016x}"))

    asyncio.run(meet())
    model.known.append(decode_sealed(files.instances.read_bytes(), dict[str, Instance], of="c1"))
    write_origin(files.state.with_name(f"{files.state.name}.origin"), origin)
    write_durable(files.rebuilt, encode_sealed(1_000_000 * starts))


def _backup(files: CoordinatorFiles, number: int) -> Path:
    files.backups.mkdir(mode=0o700, exist_ok=True)
    return files.backups / f"2026010{number}T000000-{number}.sqlite"


def _keep(data: Path, target: Path) -> None:
    """A copy as if the process were killed now, without the room that the log and the WAL have reserved."""
    shutil.copytree(data, target / DATA, symlinks=True)
    for path in (target / DATA / "log").glob("*.log"):
        cut_to_records(path)


def cut_to_records(path: Path) -> None:
    """Without what a segment of a log has only preallocated: a harm there would be none."""
    ends = [record.end for record in form.read_records(path.read_bytes(), form.HEADER_BYTES)]
    os.truncate(path, max(ends, default=form.HEADER_BYTES))


def _future(writer: _Writer, directory: Path, name: str) -> tuple[int, int]:
    """Another coordinator is ahead: a snapshot of it, in a place of its own."""
    writer.change(name)
    meta = taken(writer.ledger.snapshots, origin="")
    files = directory / f"{SOURCE}-{name}"
    shutil.copytree(directory / "made" / "snapshots", files)
    return meta.index, meta.term


def _lay_down(directory: Path) -> None:
    """In the newer state one snapshot waits to be installed, and of another one a part has come."""
    made, target = directory / "made", directory / "newer" / DATA / "snapshots"
    part_source = directory / f"{SOURCE}-fourth"
    for name, is_whole in (("fourth", False), ("third", True)):
        source = SnapshotStore(directory / f"{SOURCE}-{name}", made / "none.sqlite")
        meta = _meta(directory / f"{SOURCE}-{name}")
        here = SnapshotStore(directory / f"coming-{name}", made / "none.sqlite")
        incoming = here.begin_incoming(meta, "c2")
        chunk = source.chunk(meta.index, meta.term, 0)
        if not is_whole:
            data = chunk.data[:PART_BYTES]
            chunk = msgspec.structs.replace(chunk, data=data, crc=zlib.crc32(data))
        incoming.add(chunk)
        while is_whole and not incoming.is_complete:
            incoming.add(source.chunk(meta.index, meta.term, incoming.offset))
        if is_whole:
            incoming.finish()
        for path in (directory / f"coming-{name}").iterdir():
            path.rename(target / path.name)
        (directory / f"coming-{name}").rmdir()
    part_source.rename(directory / SOURCE)
    shutil.rmtree(directory / f"{SOURCE}-third")


def _meta(directory: Path) -> SnapshotMeta:
    meta = SnapshotStore(directory, directory / "none.sqlite").newest()
    assert meta is not None
    return meta


def _no_sync(_descriptor: int) -> None:
    """Nothing of a trial survives a power cut, nor shall it."""
