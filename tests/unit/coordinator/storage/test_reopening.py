"""What a start makes of a log that has lost its end, and of an installation that was interrupted."""

import dataclasses
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.member.member import RaftMember, with_membership
from coordinator.member.open_storage import open_ledger
from coordinator.raft.config import Config
from coordinator.raft.messages import Entry, EntryKind, HardState, Message, MessageKind, SnapshotMeta
from coordinator.storage import segment as form
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.promises import NAME, SLOT_BYTES, PromiseRecord, Promises
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.reopening import StateLost, recover
from coordinator.storage.snapshot_store import SnapshotStore
from coordinator.storage.state_store import Store
from tests.sim.disk import Crashed, SimulatedDirectory
from tests.unit.snapshot_files import fetch, meta_of, taken
from tests.unit.state import ADMIN, State, create, dump

VOTERS = ("c1", "c2", "c3")
SYNC = lambda _: None  # noqa: E731 - nothing here outlives a power cut
Kit = tuple[SnapshotStore, list[str]]


def member_of(log: SegmentLog, store: Store, snapshots: SnapshotStore) -> RaftMember:
    config = with_membership(Config("c1", ("c1",)), store)
    # The state of these tests knows one coordinator: a group of three is what it is held to be here.
    config = dataclasses.replace(config, members=VOTERS)
    return RaftMember(config, log, store, snapshots, random.Random(1))


def asked(kind: MessageKind, source: str, term: int, *, last: int = 1000, of: int = 0) -> Message:
    return Message(kind, source, "c1", term, log_index=last, log_term=of or term - 1)


def persisted(member: RaftMember) -> list[Message]:
    """What the member sends, after all that it writes."""
    sent: list[Message] = []
    while (ready := member.begin()) is not None:
        sent += ready.send_now
        if member.needs_disk(ready):
            member.persist(ready)
        sent += ready.send_after_sync
        member.finish(ready)
    return sent


def made(directory: Path, *, entries: int = 6, vote: str = "c2") -> CoordinatorFiles:
    """A member whose database holds all entries of its log, which ends with a vote in term 3."""
    files = CoordinatorFiles(directory)
    files.snapshots.mkdir()
    state = State(files.state)
    for number in range(entries):
        state.apply(create(ADMIN, f"f{number}"))
    with closing(SegmentLog.open(files.log, segment_bytes=600)) as log:
        log.append(HardState(1, "", 0), None, (), sync=True)
        for entry in state.entries:
            log.append(None, None, [entry], sync=True)
        log.append(HardState(3, vote, len(state.entries)), None, (), sync=True)
    state.store.close()
    return files


def last_segment(files: CoordinatorFiles) -> Path:
    return max(files.log.glob(f"*{form.SEGMENT_SUFFIX}"))


def offsets(path: Path, kind: form.RecordKind) -> list[int]:
    return [r.offset for r in form.read_records(path.read_bytes(), form.HEADER_BYTES) if r.kind == kind]


def zero_from(path: Path, offset: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:offset] + bytes(len(content) - offset))


def lose_last_segment(files: CoordinatorFiles) -> None:
    last_segment(files).unlink()


def lose_entries(files: CoordinatorFiles) -> None:
    path = last_segment(files)
    zero_from(path, offsets(path, form.RecordKind.ENTRY)[-1])


def lose_vote(files: CoordinatorFiles) -> None:
    path = last_segment(files)
    zero_from(path, offsets(path, form.RecordKind.HARD_STATE)[-1])


LOSSES = [lose_last_segment, lose_entries, lose_vote]


@pytest.mark.parametrize("lose", [lose_last_segment, lose_entries])
def test_database_is_durable_before_the_log_begins_behind_it(
    tmp_path: Path, lose: Callable[[CoordinatorFiles], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed leaves it in memory alone: power that is lost then would take both."""
    files, steps = made(tmp_path), list[str]()
    lose(files)
    checkpoint, reset = Store.checkpoint, SegmentLog.reset

    def checkpointing(store: Store) -> int:
        steps.append("checkpoint")
        return checkpoint(store)

    def resetting(log: SegmentLog, *state: object) -> None:
        steps.append("reset")
        reset(log, *state)  # type: ignore[arg-type]

    with closing(SegmentLog.open(files.log)) as log, closing(Store(files.state)) as store:
        monkeypatch.setattr(Store, "checkpoint", checkpointing)
        monkeypatch.setattr(SegmentLog, "reset", resetting)
        assert recover(log, store)
    assert steps == ["checkpoint", "reset"]


@pytest.mark.parametrize("lose", LOSSES)
def test_member_whose_log_lost_its_end_says_so_and_votes_for_nobody(
    tmp_path: Path, lose: Callable[[CoordinatorFiles], None], caplog: pytest.LogCaptureFixture
) -> None:
    files = made(tmp_path)
    lose(files)
    for _ in range(2):  # it is not forgotten either
        ledger = open_ledger(files, SYNC)
        member = member_of(ledger.log, ledger.store, ledger.snapshots)
        assert member.status().recovering
        member.step(asked(MessageKind.PRE_VOTE, "c3", 9))
        for term in (3, 4, 5):  # in the third it has voted for c2
            member.step(asked(MessageKind.VOTE, "c3", term))
        replies = [each for each in persisted(member) if each.kind.name.endswith("VOTE_REPLY")]
        assert replies
        assert all(each.reject for each in replies)
        for _ in range(100):
            member.tick()
        assert member.status().term == 5
        ledger.close()
    assert "neither votes nor leads" in caplog.text
    assert len([each for each in caplog.records if each.levelname == "ERROR"]) == 1


@pytest.mark.parametrize("lose", LOSSES)
def test_leader_of_a_later_term_ends_the_recovery(
    tmp_path: Path, lose: Callable[[CoordinatorFiles], None]
) -> None:
    files = made(tmp_path)
    lose(files)
    ledger = open_ledger(files, SYNC)
    member = member_of(ledger.log, ledger.store, ledger.snapshots)
    last, term = ledger.log.last_index(), ledger.log.term(ledger.log.last_index())
    noop = Entry(last + 1, 5, EntryKind.NOOP, b"")
    append = Message(MessageKind.APPEND, "c2", "c1", 5, log_index=last, log_term=term, entries=(noop,))
    member.step(append)
    persisted(member)
    assert not member.status().recovering
    ledger.close()
    ledger = open_ledger(files, SYNC)
    member = member_of(ledger.log, ledger.store, ledger.snapshots)
    assert not member.status().recovering
    member.step(asked(MessageKind.VOTE, "c3", 7, of=6))
    assert [each.reject for each in persisted(member)] == [False]
    ledger.close()


def test_old_leader_learns_that_its_term_is_over(tmp_path: Path) -> None:
    """Only a new one asks anew what this member has."""
    files = made(tmp_path)
    lose_entries(files)
    ledger = open_ledger(files, SYNC)
    member = member_of(ledger.log, ledger.store, ledger.snapshots)
    member.step(Message(MessageKind.HEARTBEAT, "c2", "c1", 3, commit=1000))
    (reply,) = persisted(member)
    assert (reply.kind, reply.term, reply.reject) == (MessageKind.APPEND_REPLY, 4, True)
    ledger.close()


@pytest.mark.parametrize("spoil", ["remove", "zero", "flip"])
def test_damage_of_the_promises_alone_costs_nothing(tmp_path: Path, spoil: str) -> None:
    files = made(tmp_path)
    path = files.log / NAME
    if spoil == "remove":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[30 : 1000 if spoil == "zero" else 31] = b"\xff" * (970 if spoil == "zero" else 1)
        path.write_bytes(content)
    with closing(open_ledger(files, SYNC)) as ledger:
        assert ledger.log.hard_state.vote == "c2"
        assert not member_of(ledger.log, ledger.store, ledger.snapshots).status().recovering
        assert ledger.log.promised == PromiseRecord(3, "c2")
    assert path.stat().st_size == 2 * SLOT_BYTES


def test_log_that_was_lost_as_a_whole_is_refused(tmp_path: Path) -> None:
    files = made(tmp_path)
    for path in files.log.iterdir():
        path.unlink()
    with pytest.raises(StateLost, match="filestore coordinator rebuild"):
        open_ledger(files, SYNC)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """A snapshot to fetch, and what is in it."""
    directory = tmp_path_factory.mktemp("kit")
    state = State(directory / "state.sqlite")
    for number in range(50):
        state.apply(create(ADMIN, f"g{number}"))
    source = SnapshotStore(directory / "source", state.path)
    taken(source, origin="")
    state.store.close()
    return source, state.dump()


class Crash(Exception):
    """The process dies here."""


def begin_installation(files: CoordinatorFiles, source: SnapshotStore, *, dies: str) -> SnapshotMeta:
    """As a member does, until the process dies; without `log.promise`, as an older version did."""
    with closing(SegmentLog.open(files.log)) as log:
        store, target = Store(files.state), SnapshotStore(files.snapshots, files.state)
        meta = fetch(source, target)
        if "marked" in dies:
            log.promise(dataclasses.replace(log.promised, installing=(meta.index, meta.term)))
        if "before" in dies:
            (files.snapshots / f"{meta.index}-{meta.term}.verified").replace(f"{files.state}.install")
            store.close()
        else:
            target.install(meta, store)
            store.close()
    return meta


@pytest.mark.parametrize("dies", ["marked before", "marked", "before"])
def test_interrupted_installation_is_ended_and_costs_no_vote(tmp_path: Path, kit: Kit, dies: str) -> None:
    source, new = kit
    files = made(tmp_path)
    meta = begin_installation(files, source, dies=dies)
    with closing(open_ledger(files, SYNC)) as ledger:
        assert ledger.store.applied() == (meta.index, meta.term)
        assert ledger.log.hard_state == HardState(3, "c2", meta.index)
        assert not member_of(ledger.log, ledger.store, ledger.snapshots).status().recovering
        assert ledger.log.promised == PromiseRecord(3, "c2")
    assert dump(files.state) == new


def test_installation_that_nothing_marks_is_taken_for_a_loss(tmp_path: Path, kit: Kit) -> None:
    """A full disk had no room for the mark: nothing tells it from a log that has lost its end."""
    source, _ = kit
    files = made(tmp_path)
    meta = begin_installation(files, source, dies="later")
    with closing(open_ledger(files, SYNC)) as ledger:
        assert ledger.store.applied() == (meta.index, meta.term)
        assert member_of(ledger.log, ledger.store, ledger.snapshots).status().recovering


@pytest.mark.parametrize("has_digest", [True, False])
@pytest.mark.parametrize("garbage", [b"", b"x" * 5000, None])
def test_garbage_in_place_of_an_installation_leaves_the_good_state(
    tmp_path: Path, kit: Kit, garbage: bytes | None, has_digest: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source, _ = kit
    files = made(tmp_path)
    before = dump(files.state)
    begin_installation(files, source, dies="marked before")
    intent = Path(f"{files.state}.install")
    content = bytearray(intent.read_bytes())
    content[4096:12288] = b"\xff" * 8192
    if has_digest:
        digest = meta_digest(source)
        Path(f"{intent}.sha256").write_text(f"{digest}  {intent.name}\n")
    intent.write_bytes(bytes(content) if garbage is None else garbage)
    with closing(open_ledger(files, SYNC)) as ledger:
        assert ledger.log.hard_state.vote == "c2"
        assert not member_of(ledger.log, ledger.store, ledger.snapshots).status().recovering
    assert dump(files.state) == before
    assert not intent.exists()
    assert "continues from the previous state" in caplog.text


def test_installation_of_other_rows_than_came_leaves_the_good_state(tmp_path: Path, kit: Kit) -> None:
    """SQLite finds nothing wrong with them."""
    source, _ = kit
    files = made(tmp_path)
    before = dump(files.state)
    begin_installation(files, source, dies="marked before")
    intent = Path(f"{files.state}.install")
    with closing(sqlite3.connect(intent)) as db, db:
        db.execute("UPDATE users SET generation = generation + 1")
    Path(f"{intent}.sha256").write_text(f"{meta_digest(source)}  {intent.name}\n")
    with closing(open_ledger(files, SYNC)):
        pass
    assert dump(files.state) == before
    assert not intent.exists()


def meta_digest(source: SnapshotStore) -> str:
    meta = meta_of(source)
    return source.chunk(meta.index, meta.term, 0).sha256


@pytest.mark.parametrize("seed", range(20))
def test_promise_that_a_start_has_read_survives_a_power_cut(seed: int) -> None:
    """The process before was killed between the write and the sync: nobody writes it again."""
    directory = SimulatedDirectory(random.Random(seed))
    promises = Promises(directory)
    promises.open()
    promises.write(PromiseRecord(1, "c1"))
    directory.crash_after(2)
    with pytest.raises(Crashed):
        promises.write(PromiseRecord(2, "c2"))
    directory.kill()
    again = Promises(directory)
    again.open()
    assert again.newest == PromiseRecord(2, "c2")
    directory.crash()
    last = Promises(directory)
    last.open()
    assert last.newest == PromiseRecord(2, "c2")


def test_log_forgets_nothing_that_the_database_may_lose(tmp_path: Path) -> None:
    files = made(tmp_path)
    with closing(SegmentLog.open(files.log)) as log, closing(Store(files.state)) as store:
        config = with_membership(Config("c1", ("c1",)), store)
        snapshots = SnapshotStore(files.snapshots, files.state)
        member = RaftMember(config, log, store, snapshots, random.Random(1), trailing_entries=0)
        assert [member.compactable(durable) for durable in (2, store.applied_index())] == [2, 7]
