"""The power fails at any moment: what was promised is there after it, whatever became of the rest.

What the product does to a real disk is recorded, and what a cut may leave is made of that: see
`tests.unit.disk_record`, `tests.unit.disk_replay`. The same for the log in memory, with many more crashes:
`tests.unit.coordinator.storage.test_log_crashes`.
"""

import asyncio
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ca.errors import InvalidRequest
from coordinator.member.open_storage import Ledger, open_ledger
from coordinator.member.rebuilding import rebuild, rebuilt_at_ms
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.log_directory import OsDirectory
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.snapshot_store import SnapshotStore, damage_of, describe
from coordinator.storage.state_damage import StateDamaged, flaw_in
from coordinator.storage.state_store import Store
from metadata.rpc.instances import count_start
from tests.unit import power_acts
from tests.unit.disk_record import Record, Recorder
from tests.unit.disk_replay import Cut, cuts
from tests.unit.power_worlds import COMMITTED, LAST, VOTED, Kit, forgetful, lagging, made_kit, mistaken
from tests.unit.seeds import seeds
from tests.unit.snapshot_files import fetch, meta_of
from tests.unit.state import dump

SEEDS = seeds(range(1, 2), range(2, 40))
Build = Callable[[CoordinatorFiles], None]
Made = Callable[..., Iterator[tuple[Cut, Path]]]


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    return made_kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module", autouse=True)
def small_segments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(power_acts.log_defaults(), "segment_bytes", power_acts.SEGMENT_BYTES)
        yield


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Each cut of a record, and the directory that it leaves, which is gone at the next."""

    def made(record: Record, seed: int, count: int, behind: str = "NRLU") -> Iterator[tuple[Cut, Path]]:
        for number, cut in enumerate(cuts(record, seed, count, behind=behind)):
            path = cut.put(tmp_path / f"cut-{number}")
            yield cut, path
            shutil.rmtree(path)

    return made


def told(cut: Cut, what: str) -> list[str]:
    """What the last of such notes says; [] for none."""
    return next((note.split()[1:] for note in reversed(cut.notes) if note.split()[0] == what), [])


def started(path: Path) -> Ledger:
    return open_ledger(CoordinatorFiles(path), os.fdatasync)


# The state


@pytest.fixture(scope="module", params=[False, True], ids=["sound", "deaf"])
def applied(
    request: pytest.FixtureRequest, recorder: Recorder, kit: Kit, tmp_path_factory: pytest.TempPathFactory
) -> Record:
    root = tmp_path_factory.mktemp("applied")
    Store(root / "state.sqlite").close()
    record = recorder.record("apply", root, kit.entries_path, is_deaf=request.param)
    notes = [call.data for call in record.calls if call.kind == "N"]
    # Else hardly a cut meets what a checkpoint leaves: see `power_acts.CHECKPOINT_CHANGES`.
    assert notes.count(b"copied") >= notes.count(b"checked") > 2, notes
    return record


@pytest.mark.parametrize("seed", SEEDS)
def test_state_is_that_of_the_last_checkpoint_or_a_later_one(
    kit: Kit, applied: Record, made: Made, seed: int
) -> None:
    """Also where the syncs that SQLite makes of a directory fail, which it tells nobody."""
    ends = {0, *(batch[-1].index for batch in power_acts.batches_of(kit.entries))}
    for cut, path in itertools.chain(made(applied, seed, 60), made(applied, seed, 40, behind="W")):
        durable = int(*told(cut, "durable") or "0")
        with closing(Store(path / "state.sqlite")) as store:
            index = store.applied_index()
            assert index >= durable, cut
            assert index in ends
            store.check()
        assert flaw_in(path / "state.sqlite", at_rest=True, deep=True) == ""
        assert dump(path / "state.sqlite") == kit.states[index], cut


@pytest.mark.parametrize("seed", SEEDS)
def test_copy_that_is_said_to_be_made_is_whole(
    recorder: Recorder, kit: Kit, made: Made, tmp_path: Path, seed: int
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    source = kit.directory / "other.sqlite"
    record = recorder.record("copy", root, source)
    for cut, path in made(record, seed, 25):
        if cut.notes[-1:] == ["copied"]:
            assert flaw_in(path / "copy.sqlite", at_rest=True, deep=True) == "", cut
            assert dump(path / "copy.sqlite") == dump(source)


# Snapshots


@pytest.mark.parametrize("seed", SEEDS)
def test_snapshot_that_is_handed_out_is_whole_and_none_goes_before_the_next_is_there(
    recorder: Recorder, kit: Kit, made: Made, tmp_path: Path, seed: int
) -> None:
    record = recorder.record("make", lagging(tmp_path / "root", kit), kit.entries_path)
    for cut, path in made(record, seed, 75):
        newest = SnapshotStore(path / "snapshots", path / "state.sqlite").newest()
        assert (newest.index if newest else 0) >= int(*told(cut, "published") or "0"), cut
        for file in path.glob("snapshots/*.snapshot"):
            assert damage_of(file, deep=True) == "", cut
            assert dump(file) == kit.states[describe(file).index]


def check_member(path: Path, kit: Kit, said: list[str], *, goes_on: bool) -> None:
    """The old state or the new one, with the log that belongs to it; and from the old one the new follows."""
    for file in path.glob("snapshots/*.verified"):
        assert dump(file) == kit.states[kit.snapshot_index]
    with closing(started(path)) as ledger:
        index, term = ledger.store.applied()
        assert dump(path / "state.sqlite") == kit.states[index]
        assert ledger.log.term(index) == term
        assert ledger.log.promised.lost_term == 0
        assert ledger.log.last_index() >= index
        is_new = index >= kit.snapshot_index
        assert is_new or "installed" not in said
        assert ledger.log.last_index() > kit.snapshot_index or "acknowledged" not in said
        assert ledger.snapshots.origin() == "c2" or not is_new
        assert not list(path.glob("*.damaged"))
        if not is_new and "verified" in said:
            assert ledger.snapshots.begin_incoming(meta_of(kit.snapshots)).is_complete
            assert list(path.glob("snapshots/*.verified"))
        if goes_on and not is_new:
            index = install_again(path, ledger, kit)
    assert dump(path / "state.sqlite") == kit.states[index]


def install_again(path: Path, ledger: Ledger, kit: Kit) -> int:
    """Go on with what has come of the snapshot, which may have been torn."""
    with suppress(InvalidRequest):
        fetch(kit.snapshots, ledger.snapshots)
    meta = fetch(kit.snapshots, ledger.snapshots)
    ledger.snapshots.install(meta, ledger.store)
    return meta.index


@pytest.fixture(scope="module")
def installed(recorder: Recorder, kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Record:
    root = lagging(tmp_path_factory.mktemp("installed") / "root", kit)
    return recorder.record("install", root, kit.directory, kit.entries_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_member_that_installs_a_snapshot_has_the_old_state_or_the_new_one(
    kit: Kit, installed: Record, made: Made, seed: int
) -> None:
    for cut, path in made(installed, seed, 80):
        check_member(path, kit, cut.notes, goes_on=cut.at % 5 == 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_decision_to_install_a_snapshot_is_durable(
    recorder: Recorder, kit: Kit, made: Made, tmp_path: Path, seed: int
) -> None:
    """A state that is built again is given up on the strength of it."""
    record = recorder.record("decide", lagging(tmp_path / "root", kit), kit.directory)
    for cut, path in made(record, seed, 30):
        if cut.notes:
            found = SnapshotStore(path / "snapshots", path / "state.sqlite").find_unfinished()
            assert found == meta_of(kit.snapshots), cut


@pytest.mark.parametrize("seed", SEEDS)
def test_start_that_ends_an_installation_may_end_itself(
    recorder: Recorder, kit: Kit, installed: Record, made: Made, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "root").mkdir()
    said = {}
    for number, cut in enumerate(cuts(installed, seed, 8)):
        cut.put(tmp_path / "root" / f"{number:02}")
        said[f"{number:02}"] = cut.notes
    record = recorder.record("start", tmp_path / "root")
    for number, cut in enumerate(cuts(record, seed, 30)):
        if cut.notes:
            (name,) = told(cut, "begins")
            path = cut.put(tmp_path / f"cut-{number}", below=f"/{name}")
            check_member(path, kit, said[name], goes_on=False)
            shutil.rmtree(path)


@pytest.mark.parametrize(
    "last", ["R /state.sqlite.install", pytest.param("R /state.sqlite", marks=pytest.mark.long)]
)
def test_start_after_an_installation_that_was_killed_relies_on_nothing_that_is_not_durable(
    recorder: Recorder, kit: Kit, installed: Record, made: Made, tmp_path: Path, last: str
) -> None:
    """The names that it finds may be gone after the next power cut."""
    root = lagging(tmp_path / "root", kit)
    calls = installed.calls_until(*last.split())
    record = recorder.record("killed", root, str(calls), "install", kit.directory, kit.entries_path)
    for cut, path in made(record, calls, 20):
        check_member(path, kit, cut.notes, goes_on=False)


# A state that is built again


def settled(path: Path, build: Build) -> Ledger:
    """Started as the product does, which rebuilds a damaged state."""
    try:
        return started(path)
    except StateDamaged:
        build(CoordinatorFiles(path))
    return started(path)


def check_rebuilt(path: Path, cut: Cut, kit: Kit, index: int, build: Build) -> None:
    """The state is the right one, at this entry, and all that was promised is known."""
    files = CoordinatorFiles(path)
    with closing(settled(path, build)) as ledger:
        if "noted" not in cut.notes and not files.rebuilt.exists():
            return  # nobody knows of the damage
        assert ledger.store.applied_index() == index
        assert dump(files.state) == kit.states[index], cut
        assert (ledger.log.hard_state.term, ledger.log.hard_state.vote) == (VOTED.term, VOTED.vote)
        assert ledger.log.promised.lost_term == 0
        assert ledger.log.last_index() >= LAST
    assert rebuilt_at_ms(files.rebuilt) > 0, cut
    assert list(path.glob("state.sqlite.damaged-*")), cut


def build_alone(files: CoordinatorFiles) -> None:
    asyncio.run(rebuild(files, StateDamaged("by a test"), power_acts.nobody, sync=os.fdatasync))


@pytest.mark.parametrize("seed", SEEDS)
def test_state_that_was_found_wrong_is_never_gone_on_with(
    recorder: Recorder, kit: Kit, made: Made, tmp_path: Path, seed: int
) -> None:
    """Its log has all: the state is built of it, whenever the power fails."""
    record = recorder.record("rebuild_alone", mistaken(tmp_path / "root", kit, has_all=True))
    for cut, path in made(record, seed, 40):
        check_rebuilt(path, cut, kit, COMMITTED, build_alone)
        assert not list(path.glob("*.install*"))


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_state_that_was_found_wrong_gives_way_to_that_of_another(
    recorder: Recorder, kit: Kit, made: Made, tmp_path: Path, seed: int
) -> None:
    def build(files: CoordinatorFiles) -> None:
        asyncio.run(power_acts.fetch_state(files, kit.directory))

    root = mistaken(tmp_path / "root", kit, has_all=False)
    record = recorder.record("rebuild_fetched", root, kit.directory)
    for cut, path in made(record, seed, 8):
        check_rebuilt(path, cut, kit, kit.snapshot_index, build)


@pytest.mark.parametrize("seed", SEEDS)
def test_member_that_has_forgotten_a_vote_knows_that_it_has(
    recorder: Recorder, kit: Kit, made: Made, tmp_path: Path, seed: int
) -> None:
    record = recorder.record("lose_log", forgetful(tmp_path / "root", kit))
    for cut, path in made(record, seed, 25):
        with closing(started(path)) as ledger:
            assert ledger.log.promised.lost_term == 3, cut
            assert ledger.log.hard_state.term > 3
            assert dump(path / "state.sqlite") == kit.states[10]


# Small files, and what the log makes of a disk


@pytest.mark.parametrize("seed", SEEDS)
def test_log_on_a_disk_holds_what_it_acknowledged(
    recorder: Recorder, made: Made, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "root").mkdir()
    record = recorder.record("append", tmp_path / "root")
    for cut, path in made(record, seed, 80):
        index, term, vote = told(cut, "acknowledged") or ["0", "0", ""]
        with closing(SegmentLog.open(path / "log", segment_bytes=power_acts.APPENDED_SEGMENT_BYTES)) as log:
            assert log.last_index() >= int(index), cut
            known = log.hard_state
            assert (known.term, known.vote) == (int(term), vote) or known.term > int(term)
            assert not log.promised.is_ahead_of(known)


@pytest.mark.parametrize("seed", SEEDS)
def test_torn_promise_leaves_the_one_before(
    recorder: Recorder, made: Made, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "root").mkdir()
    record = recorder.record("promise", tmp_path / "root")
    for cut, path in made(record, seed, 50, "W"):
        if cut.notes:
            with closing(SegmentLog.open(path / "log")) as log:
                assert log.promised.term >= int(told(cut, "promised")[0]), cut
                assert log.promised.lost_term == 9, cut


@pytest.mark.parametrize("seed", SEEDS)
def test_file_has_the_size_and_the_bytes_that_were_synced(
    recorder: Recorder, made: Made, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "root").mkdir()
    record = recorder.record("shape", tmp_path / "root")
    for cut, path in made(record, seed, 40):
        if cut.notes and record.calls[cut.at - 1].kind == "N":
            with closing(OsDirectory(path / "files")) as directory, closing(directory.open("a")) as file:
                assert file.size_bytes() == int(told(cut, "has")[0]), cut
                assert file.read(0, 7) == (b"written" if len(cut.notes) > 1 else bytes(7))


@pytest.mark.parametrize("seed", SEEDS)
def test_small_file_is_the_old_one_or_the_new_one(
    recorder: Recorder, made: Made, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "root").mkdir()
    record = recorder.record("place", tmp_path / "root")
    for cut, path in made(record, seed, 70):
        small = (path / "small").read_bytes() if (path / "small").exists() else b""
        assert small in [b"", *(str(number).encode() * 3000 for number in range(4))], cut
        assert small[:1] >= (b"".join(each.encode() for each in told(cut, "small"))), cut
        for number in range(4):
            secret = path / f"secret-{number}"
            assert not secret.exists() or secret.read_bytes() == str(number).encode() * 3000
            assert secret.exists() or f"secret {number}" not in cut.notes, cut
            assert (path / f"a{number}" / "b").is_dir() or f"directory {number}" not in cut.notes, cut


@pytest.mark.parametrize("seed", SEEDS)
def test_start_of_a_directory_is_never_counted_twice(
    recorder: Recorder, made: Made, tmp_path: Path, seed: int
) -> None:
    (tmp_path / "root").mkdir()
    record = recorder.record("count", tmp_path / "root")
    for cut, path in made(record, seed, 30):
        directory, start = told(cut, "counted") or ["", "0"]
        next_one = count_start(path / "instance.json", "c1")
        assert next_one is not None
        assert next_one.start > int(start), cut
        assert directory in ("", next_one.directory)
