"""A coordinator with a damaged database gets its state from its log, or from another coordinator."""

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from ca.certificates import Authority
from ca.identity import Identity, Role
from coordinator.member import rebuilding, snapshot_fetch
from coordinator.member.open_storage import Ledger, open_ledger
from coordinator.member.rebuilding import note_damage, rebuild
from coordinator.raft.messages import Entry, HardState
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.reopening import StateLost
from coordinator.storage.snapshot_origins import write_origin
from coordinator.storage.snapshot_store import IncomingSnapshot, SnapshotStore
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.state_store import Store
from coordinator.storage.stored_sums import SUMS
from metadata.model.records import CoordinatorRecord
from metadata.rpc.client import MetadataClient
from runtime.stopping import Stop
from tests.unit.peer_ports import CLUSTER, contexts_of
from tests.unit.snapshot_peers import peer
from tests.unit.state import ADMIN, State, create, dump
from tests.unit.state_damage import spoil

NOBODY = CoordinatorRecord(coordinator_id="c2", address="127.0.0.1", peer_port=1, api_port=1)
DEADLINE_S = 20.0
DAMAGE = StateDamaged("state.sqlite is damaged: by a test")


def history(directory: Path, *, count: int, last_term: int = 1) -> State:
    """A state of some entries, the last of them of another term."""
    state = State(directory / "other.sqlite")
    for number in range(1, count):
        state.done(create(ADMIN, f"f{number}"))
    last = state.entries[-1]
    state.apply_entry(Entry(last.index + 1, last_term, last.kind, last.data))
    return state


def member(directory: Path, entries: list[Entry], hard_state: HardState, *, after: int) -> CoordinatorFiles:
    """Of c1: its log has forgotten the entries up to `after`, its database is damaged."""
    files = CoordinatorFiles(directory / "c1")
    files.data.mkdir()
    record = CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=2)
    files.write_config(CoordinatorConfig(id="c1", cluster=CLUSTER, members=[record, NOBODY]))
    SegmentLog.bootstrap(files.log, HardState(1, "", 1), entries[:1])
    with closing(SegmentLog.open(files.log)) as log:
        if after:
            log.reset(hard_state, after, 1)
        log.append(hard_state, None, entries[after or 1 :], sync=True)
    with closing(Store(files.state)) as store:
        store.apply(entries[: hard_state.commit])
    spoil(files.state, "users")
    return files


def opened(files: CoordinatorFiles) -> Ledger:
    return open_ledger(files, os.fdatasync)


def nobody(directory: Path, authority: Authority) -> MetadataClient:
    contexts = contexts_of("c1", directory, authority)
    return MetadataClient(Identity(CLUSTER, Role.COORDINATOR, "c1"), [NOBODY], contexts.client)


@pytest.mark.parametrize("last_term", [1, 9])
async def test_state_comes_from_another_coordinator_and_nothing_promised_is_forgotten(
    tmp_path: Path, peer_authority: Authority, last_term: int
) -> None:
    state = history(tmp_path, count=40, last_term=last_term)
    files = member(tmp_path, state.entries[:35], HardState(7, "c2", 30), after=20)
    with pytest.raises(StateDamaged):
        opened(files)
    snapshots = SnapshotStore(tmp_path / "snapshots", state.path)
    async with peer(snapshots, tmp_path, peer_authority) as connect:
        await rebuild(files, DAMAGE, connect, sync=os.fdatasync)
    with closing(opened(files)) as ledger:
        assert ledger.store.applied_index() == 41
        known = ledger.log.hard_state
        assert (known.term, known.vote) == ((7, "c2") if last_term == 1 else (9, ""))
        assert ledger.log.last_index() == 41
    assert dump(files.state) == state.dump()
    state.store.close()


async def test_source_hears_of_a_rebuild_for_as_long_as_that_verifies(
    tmp_path: Path, peer_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = history(tmp_path, count=40)
    files = member(tmp_path, state.entries[:35], HardState(7, "c2", 30), after=20)
    snapshots = SnapshotStore(tmp_path / "snapshots", state.path)
    finish, heard = IncomingSnapshot.finish, list[bool]()

    def finish_late(incoming: IncomingSnapshot, stop: Stop) -> None:
        asked_at_s, ends_at_s = snapshots.served_at_s, time.monotonic() + DEADLINE_S
        while snapshots.served_at_s == asked_at_s and time.monotonic() < ends_at_s:
            time.sleep(0.001)
        heard.append(snapshots.served_at_s > asked_at_s)
        finish(incoming, stop)

    monkeypatch.setattr(snapshot_fetch, "HEARD_S", 0.01)
    monkeypatch.setattr(IncomingSnapshot, "finish", finish_late)
    async with peer(snapshots, tmp_path, peer_authority) as connect:
        await rebuild(files, DAMAGE, connect, sync=os.fdatasync)
    assert heard == [True]
    state.store.close()


async def test_acknowledged_entries_beyond_the_snapshot_stay(
    tmp_path: Path, peer_authority: Authority
) -> None:
    state = history(tmp_path, count=24)
    more = [Entry(index, 1, state.entries[-1].kind, state.entries[-1].data) for index in range(26, 36)]
    files = member(tmp_path, state.entries + more, HardState(7, "c2", 22), after=20)
    snapshots = SnapshotStore(tmp_path / "snapshots", state.path)
    async with peer(snapshots, tmp_path, peer_authority) as connect:
        await rebuild(files, DAMAGE, connect, sync=os.fdatasync)
    with closing(opened(files)) as ledger:
        assert ledger.store.applied_index() == 25
        assert (ledger.log.first_index(), ledger.log.last_index()) == (21, 35)
    state.store.close()


async def test_whole_log_builds_the_state_without_anybody(tmp_path: Path, peer_authority: Authority) -> None:
    state = history(tmp_path, count=24)
    files = member(tmp_path, state.entries, HardState(7, "c2", 25), after=0)
    await rebuild(files, DAMAGE, lambda: nobody(tmp_path, peer_authority), sync=os.fdatasync)
    with closing(opened(files)) as ledger:
        assert ledger.store.applied_index() == 25
    assert dump(files.state) == state.dump()
    state.store.close()


async def test_damage_that_a_process_found_is_believed_by_the_next(
    tmp_path: Path, peer_authority: Authority
) -> None:
    """Also where the checks at start find nothing."""
    state = history(tmp_path, count=24)
    files = member(tmp_path, state.entries, HardState(7, "c2", 25), after=0)
    for number in range(4):
        said = note_damage(files, StateDamaged(f"damage {number}"))
        assert f"damage {number}" in said.details
        with pytest.raises(StateDamaged, match=f"damage {number}"):
            opened(files)
        await rebuild(files, DAMAGE, lambda: nobody(tmp_path, peer_authority), sync=os.fdatasync)
        opened(files).close()
        kept = [path for path in files.data.glob("state.sqlite.damaged-*") if path.suffix != SUMS]
        assert len(kept) == min(number + 1, rebuilding.DAMAGED_MAX)
    state.store.close()


def test_note_of_damage_that_is_damaged_itself_is_believed(tmp_path: Path) -> None:
    state = history(tmp_path, count=4)
    files = member(tmp_path, state.entries, HardState(1, "", 4), after=0)
    state.store.close()
    files.state_damaged.write_bytes(b"\xff\xfe state.sqlite")
    with pytest.raises(StateDamaged, match=r"state\.sqlite"):
        opened(files)


async def test_coordinator_that_nobody_gives_the_state_keeps_everything(
    tmp_path: Path, peer_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilding, "SILENCE_S", 0.5)
    state = history(tmp_path, count=24)
    files = member(tmp_path, state.entries, HardState(7, "c2", 25), after=20)
    before = files.state.read_bytes()
    with pytest.raises(StateLost, match="no coordinator provides the state"):
        await rebuild(files, DAMAGE, lambda: nobody(tmp_path, peer_authority), sync=os.fdatasync)
    assert files.state.read_bytes() == before
    with closing(SegmentLog.open(files.log)) as log:
        assert log.hard_state == HardState(7, "c2", 25)
    state.store.close()


async def test_state_is_waited_for_while_members_differ(
    tmp_path: Path,
    peer_authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However long: it is told why, once. Then it is the other's, and so noted."""
    monkeypatch.setattr(rebuilding, "SILENCE_S", 3.0)
    monkeypatch.setattr(rebuilding, "PAUSE_S", 0.1)
    state = history(tmp_path, count=40)
    files = member(tmp_path, state.entries[:35], HardState(7, "c2", 30), after=20)
    files.differences.write_text("{}")
    snapshots = SnapshotStore(tmp_path / "snapshots", state.path)
    async with peer(snapshots, tmp_path, peer_authority, ["they differ"] * 40) as connect:
        await rebuild(files, DAMAGE, connect, sync=os.fdatasync)
    assert caplog.text.count("they differ") == 1
    with closing(opened(files)) as ledger:
        assert ledger.snapshots.origin() == "c2"
    assert rebuilding.rebuilt_at_ms(files.rebuilt) > 0
    assert not files.differences.exists()
    state.store.close()


async def test_state_that_the_log_builds_is_a_members_own(tmp_path: Path, peer_authority: Authority) -> None:
    state = history(tmp_path, count=24)
    files = member(tmp_path, state.entries, HardState(7, "c2", 25), after=0)
    write_origin(files.data / "state.sqlite.origin", "c2")
    await rebuild(files, DAMAGE, lambda: nobody(tmp_path, peer_authority), sync=os.fdatasync)
    with closing(opened(files)) as ledger:
        assert ledger.snapshots.origin() == ""
    state.store.close()
