"""The log on a simulated disk that crashes at every operation: what was synced is there, and nothing else."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from coordinator.raft.messages import Entry, EntryKind, HardState
from coordinator.storage import promises, segment
from coordinator.storage.raft_log import ForgottenSegments, LogDamaged, LogFailed, SegmentLog
from tests.sim.disk import Crashed, SimulatedDirectory
from tests.unit.seeds import seeds

SEGMENT_BYTES = 700  # a few batches
STEPS = 40
RECOVERIES_MAX = 50


@dataclass(frozen=True)
class State:
    """What a log may hold. `entries` are all since `base`; those up to `floor` may be gone."""

    base: int = 0
    base_term: int = 0
    floor: int = 0
    committed: int = 0
    entries: tuple[Entry, ...] = ()
    hard_state: HardState = field(default_factory=HardState)

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    def term(self, index: int) -> int:
        return self.entries[index - self.base - 1].term if index > self.base else self.base_term

    def after(
        self, hard_state: HardState | None, truncate_from: int | None, entries: list[Entry]
    ) -> Iterator["State"]:
        """The states on the way through one batch, in the order of its records."""
        state = replace(self, hard_state=hard_state or self.hard_state)
        yield state
        if truncate_from is not None:
            state = replace(state, entries=state.entries[: truncate_from - self.base - 1])
            yield state
        for entry in entries:
            state = replace(state, entries=(*state.entries, entry))
            yield state

    def allows(self, log: SegmentLog) -> bool:
        first, last = log.first_index(), log.last_index()
        if not (self.base < first <= self.floor + 1 and last == self.last):
            return False
        if (log.hard_state, log.term(first - 1)) != (self.hard_state, self.term(first - 1)):
            return False
        held = self.entries[first - self.base - 1 :]
        return tuple(read_all(log)) == held and [log.term(e.index) for e in held] == [e.term for e in held]


def read_all(log: SegmentLog) -> list[Entry]:
    found: list[Entry] = []
    while log.first_index() + len(found) <= log.last_index():
        found += log.entries(log.first_index() + len(found), log.last_index() + 1, 200)
    return found


class Run:
    """One random life of a log, with a model of all that a crash may leave of it."""

    def __init__(self, seed: int, *, cache_bytes_max: int = 300) -> None:
        self.rand = random.Random(seed)
        self.disk = SimulatedDirectory(random.Random(seed + 1))
        self.possible = [State()]  # the last one is what the running log holds
        self.forgotten: deque[ForgottenSegments] = deque()
        self.term = 0
        self.recoveries = 0
        self.cache_bytes_max = cache_bytes_max
        self.log: SegmentLog | None = None

    def open(self) -> SegmentLog:
        """Opens the log, and checks that the model allows what it holds."""
        self.forgotten.clear()
        log = SegmentLog.open_in(
            self.disk,
            segment_bytes=SEGMENT_BYTES,
            cache_bytes_max=self.cache_bytes_max,
            draw_bytes=self.rand.randbytes,
        )
        found = [state for state in self.possible if state.allows(log)]
        assert found, f"{log.first_index()=} {log.hard_state=} {read_all(log)=} {self.possible=}"
        self.possible = [replace(found[-1], floor=log.first_index() - 1)]
        self.log = log
        return log

    def recover(self, *, power_lasts: bool, crash_again: bool) -> None:
        """The process died; it starts until it lives, and may die on the way."""
        while True:
            self.recoveries += 1
            assert self.recoveries < RECOVERIES_MAX, "the log never starts"
            if power_lasts:
                self.disk.kill()
            else:
                self.disk.crash()
            if crash_again:
                self.disk.crash_after(self.rand.randint(1, 12))
                crash_again, power_lasts = self.rand.random() < 0.5, self.rand.random() < 0.3
            try:
                self.open()
            except Crashed:
                continue
            return

    def step(self) -> None:
        if self.log is None:
            self.open()
        actions = [self.append, self.append, self.append, self.truncate, self.vote, self.compact]
        rare = [self.compact, self.discard, self.reset, self.spare, self.reopen]
        self.rand.choice([*actions, self.rand.choice(rare)])()

    def write(self, hard_state: HardState | None, truncate_from: int | None, sizes: list[int]) -> None:
        assert self.log is not None
        state = self.possible[-1]
        first = truncate_from or state.last + 1
        entries = [
            Entry(index, self.term, EntryKind.COMMAND, self.rand.randbytes(size))
            for index, size in enumerate(sizes, first)
        ]
        sync = self.rand.random() < 0.6
        self.possible += state.after(hard_state, truncate_from, entries)
        self.log.append(hard_state, truncate_from, entries, sync=sync)
        if sync:
            state = self.possible[-1]
            committed = self.rand.randint(state.committed, state.last)
            self.possible = [replace(state, committed=committed)]

    def sizes(self) -> list[int]:
        return [self.rand.choice([0, 30, 200]) for _ in range(self.rand.randint(0, 5))]

    def append(self) -> None:
        self.write(None, None, self.sizes())

    def vote(self) -> None:
        self.term += 1
        self.write(HardState(self.term, "c2", self.possible[-1].committed), None, self.sizes())

    def truncate(self) -> None:
        state = self.possible[-1]
        self.term += 1
        hard_state = HardState(self.term, "", state.committed)
        if state.last > state.committed:
            self.write(hard_state, self.rand.randint(state.committed + 1, state.last), self.sizes())

    def compact(self) -> None:
        assert self.log is not None
        first = self.log.first_index()
        index = self.rand.randint(0, self.possible[-1].committed)
        self.forgotten.append(self.log.forget(index))
        assert first <= self.log.first_index() <= max(index + 1, first)
        self.possible = [replace(each, floor=self.log.first_index() - 1) for each in self.possible]
        assert self.possible[-1].allows(self.log)
        if self.rand.random() < 0.7:
            self.discard()

    def discard(self) -> None:
        assert self.log is not None
        while self.forgotten:
            self.log.discard(self.forgotten.popleft())

    def reset(self) -> None:
        assert self.log is not None
        state = self.possible[-1]
        self.term += 1
        index = self.rand.randint(state.committed, state.last + 20)
        hard_state = HardState(self.term, "c3", index)
        term = self.rand.randint(state.base_term, self.term)
        after = State(index, term, floor=index, committed=index, hard_state=hard_state)
        self.possible.append(after)
        self.log.reset(hard_state, index, term)
        self.possible = [after]

    def spare(self) -> None:
        assert self.log is not None
        assert self.log.prepare_spare()
        assert self.log.is_spare_ready

    def reopen(self) -> None:
        assert self.log is not None
        self.log.close()
        self.possible = self.possible[-1:]
        self.open()


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
def test_log_survives_a_crash_at_every_operation(seed: int) -> None:
    crash_at = 0
    is_over = False
    while not is_over:
        crash_at += 1
        run = Run(seed)
        run.disk.crash_after(crash_at)
        is_over = True
        for _ in range(STEPS):
            try:
                run.step()
            except Crashed:
                is_over = False
                run.recover(power_lasts=crash_at % 3 == 0, crash_again=crash_at % 2 == 0)
    assert crash_at > STEPS


@pytest.mark.parametrize("sync_fails_share", [0, 0.1])
@pytest.mark.parametrize("seed", seeds(range(100, 110), range(110, 160)))
def test_log_survives_a_life_of_crashes(seed: int, sync_fails_share: float) -> None:
    run = Run(seed, cache_bytes_max=run_cache(seed))
    crashes = 0
    for _ in range(STEPS * 5):
        if run.rand.random() < sync_fails_share:
            run.disk.fail_next_sync()
        try:
            run.step()
        except (Crashed, LogFailed):
            crashes += 1
            run.recoveries = 0
            run.recover(power_lasts=run.rand.random() < 0.4, crash_again=run.rand.random() < 0.3)
        if not run.disk.is_armed:
            run.disk.crash_after(run.rand.randint(1, 30))
    assert crashes > 5


def run_cache(seed: int) -> int:
    return (0, 300, 1 << 20)[seed % 3]


@pytest.mark.parametrize("seed", range(200, 203))
def test_flipped_bit_of_what_was_synced_is_damage(seed: int) -> None:
    run = Run(seed)
    for _ in range(STEPS):
        run.step()
    assert run.log is not None
    run.discard()
    end_bytes = run.log._position_bytes  # nobody vouches for the marks that closing writes there
    run.log.close()
    names = [name for name in run.disk.names() if name.endswith(segment.SEGMENT_SUFFIX)]
    for name in names:
        synced_bytes = end_bytes if name == names[-1] else len(run.disk.content(name))
        for offset in range(0, synced_bytes, 7):
            run.disk.damage(name, offset)
            with pytest.raises(LogDamaged) as caught:
                SegmentLog.open_in(run.disk, segment_bytes=SEGMENT_BYTES)
            assert name in caught.value.details
            assert "filestore coordinator rebuild" in caught.value.details
            run.disk.damage(name, offset)
    run.possible = run.possible[-1:]
    run.open()


def make_log(disk: SimulatedDirectory, *, entries: int = 0) -> SegmentLog:
    log = SegmentLog.open_in(disk, segment_bytes=SEGMENT_BYTES, cache_bytes_max=0)
    for index in range(1, entries + 1):
        log.append(HardState(1, "c1", 0), None, [Entry(index, 1, EntryKind.COMMAND, bytes(90))], sync=True)
    return log


def segments_of(disk: SimulatedDirectory) -> list[str]:
    """The files in the directory of a log, without the one beside the segments."""
    return [name for name in disk.names() if name != promises.NAME]


@pytest.fixture
def disk() -> SimulatedDirectory:
    return SimulatedDirectory(random.Random(1))


def test_missing_segment_in_the_middle_is_damage(disk: SimulatedDirectory) -> None:
    make_log(disk, entries=30).close()
    names = segments_of(disk)
    assert len(names) > 4
    disk.remove(names[2])

    with pytest.raises(LogDamaged, match="does not follow the one before"):
        make_log(disk)
    assert len(segments_of(disk)) == len(names) - 1, "damage leaves every file as it was"


def test_segment_under_another_name_is_damage(disk: SimulatedDirectory) -> None:
    make_log(disk, entries=30).close()
    disk.rename(segments_of(disk)[0], segment.segment_name(0))

    with pytest.raises(LogDamaged, match="by its header"):
        make_log(disk)


def test_log_after_a_reset_begins_behind_the_snapshot(disk: SimulatedDirectory) -> None:
    log = make_log(disk, entries=30)
    log.reset(HardState(5, "c2", 100), 100, 4)
    assert (log.first_index(), log.last_index(), log.term(100)) == (101, 100, 4)
    log.append(None, None, [Entry(101, 5, EntryKind.COMMAND, b"first")], sync=True)
    disk.crash()

    log = make_log(disk)

    assert (log.first_index(), log.last_index(), log.term(100), log.term(101)) == (101, 101, 4, 5)
    assert log.hard_state == HardState(5, "c2", 100)
    assert len(segments_of(disk)) == 1


def test_reset_to_an_earlier_term_stops_the_process(disk: SimulatedDirectory) -> None:
    log = make_log(disk)
    log.append(HardState(7, "c1", 0), None, (), sync=True)

    with pytest.raises(AssertionError, match="term 6 falls back"):
        log.reset(HardState(6, "", 10), 10, 6)


def test_older_segments_that_a_crash_left_before_a_base_are_removed(disk: SimulatedDirectory) -> None:
    log = make_log(disk, entries=30)
    before = {name: disk.content(name) for name in segments_of(disk)}
    log.reset(HardState(5, "c2", 100), 100, 4)
    log.close()
    for name, content in before.items():
        disk.create(name).write(0, content[:-1])  # damaged or not: they are void

    log = make_log(disk)

    assert (log.first_index(), log.last_index()) == (101, 100)
    assert not set(before) & set(segments_of(disk))


def test_compaction_frees_whole_segments_and_keeps_the_last(disk: SimulatedDirectory) -> None:
    log = make_log(disk, entries=30)
    before_bytes, names = log.size_bytes(), segments_of(disk)

    forgotten = log.forget(20)

    assert 15 < log.first_index() <= 21
    assert log.term(log.first_index() - 1) == 1
    assert segments_of(disk) == names, "files go with discard"
    assert log.size_bytes() == before_bytes - sum(each.size_bytes for each in forgotten.segments)
    log.discard(forgotten)
    assert segments_of(disk) == names[len(forgotten.segments) :]
    log.discard(log.forget(30))
    assert (len(segments_of(disk)), log.last_index()) == (1, 30)
    log.close()
    assert make_log(disk).last_index() == 30


def test_segments_are_discarded_in_order_only(disk: SimulatedDirectory) -> None:
    log = make_log(disk, entries=30)
    log.forget(10)
    second = log.forget(20)

    with pytest.raises(AssertionError, match="in the order"):
        log.discard(second)


def test_truncation_below_the_segment_begins_a_new_one_that_needs_no_older(disk: SimulatedDirectory) -> None:
    log = make_log(disk, entries=30)
    segments = len(segments_of(disk))

    log.append(HardState(9, "c3", 3), 4, [Entry(4, 9, EntryKind.COMMAND, b"new")], sync=True)

    assert len(segments_of(disk)) == segments + 1
    log.discard(log.forget(3))
    assert (len(segments_of(disk)), log.first_index(), log.term(3), log.term(4)) == (1, 4, 1, 9)
    log.close()
    log = make_log(disk)
    assert (log.first_index(), log.last_index(), log.hard_state) == (4, 4, HardState(9, "c3", 3))


def test_spare_lets_a_full_disk_take_one_more_segment(disk: SimulatedDirectory) -> None:
    log = make_log(disk)
    assert log.prepare_spare()
    disk.capacity_bytes = disk.used_bytes
    entries = [Entry(index, 1, EntryKind.COMMAND, bytes(90)) for index in range(1, 40)]

    for entry in entries:
        is_last = not log.is_spare_ready and log._position_bytes + 200 > SEGMENT_BYTES
        if is_last:
            break
        log.append(None, None, [entry], sync=True)

    assert len(segments_of(disk)) == 2
    disk.capacity_bytes = disk.used_bytes
    assert not log.prepare_spare()
    assert not log.is_spare_ready
    with pytest.raises(LogFailed):
        log.append(None, None, entries[entry.index - 1 : entry.index + 3], sync=True)


def test_last_segment_takes_entries_while_the_next_one_has_no_room(disk: SimulatedDirectory) -> None:
    """Room for a few entries, such as those that free room, but not for a whole segment."""
    log = make_log(disk)
    disk.capacity_bytes = disk.used_bytes + SEGMENT_BYTES - 1
    entries = [Entry(index, 1, EntryKind.COMMAND, bytes(90)) for index in range(1, 41)]
    while log._position_bytes + SEGMENT_BYTES // 4 < 2 * SEGMENT_BYTES:
        log.append(None, None, [entries[log.last_index()]], sync=True)
    assert len(segments_of(disk)) == 1
    kept = log.last_index()
    disk.crash()
    log = make_log(disk)
    assert read_all(log) == entries[:kept]

    disk.capacity_bytes = disk.used_bytes + 3 * SEGMENT_BYTES  # what was full has been freed
    log.append(None, None, [entries[kept]], sync=True)

    assert log._index.segments[-1].header.first_index == kept + 1
    log.close()
    assert read_all(make_log(disk)) == entries[: kept + 1]


def test_full_disk_does_not_keep_a_log_from_opening(disk: SimulatedDirectory) -> None:
    log = make_log(disk, entries=10)
    assert log.prepare_spare()
    disk.capacity_bytes = disk.used_bytes
    disk.crash()
    disk.capacity_bytes = disk.used_bytes

    log = make_log(disk)

    assert len(read_all(log)) == 10


def test_failed_sync_is_final_and_its_batch_may_be_lost(disk: SimulatedDirectory) -> None:
    log = make_log(disk, entries=3)
    disk.fail_next_sync()
    with pytest.raises(LogFailed):
        log.append(None, None, [Entry(4, 1, EntryKind.COMMAND, bytes(9))], sync=True)
    for call in (log.prepare_spare, lambda: log.reset(HardState(9), 9, 9), lambda: log.term(1)):
        with pytest.raises(LogFailed):
            call()
    log.close()
    disk.crash()

    assert make_log(disk).last_index() in (3, 4)


@pytest.mark.parametrize("seed", seeds(range(8), range(8, 40)))
def test_what_a_failed_sync_left_is_written_anew_before_a_start_counts_on_it(seed: int) -> None:
    """The kernel takes it for written, so that no later sync would save it."""
    disk = SimulatedDirectory(random.Random(seed))
    log = make_log(disk, entries=1)
    disk.fail_next_sync()
    with pytest.raises(LogFailed):
        log.append(HardState(2, "c2", 1), None, [Entry(2, 2, EntryKind.COMMAND, bytes(90))], sync=True)
    log.close()
    disk.kill()

    log = make_log(disk)
    promised = (log.hard_state, read_all(log))
    disk.crash()

    log = make_log(disk)
    assert (log.hard_state, read_all(log)) == promised


@pytest.mark.parametrize("call", ["rotate", "reset", "discard", "spare"])
def test_disk_that_fails_during_housekeeping_is_final(disk: SimulatedDirectory, call: str) -> None:
    log = make_log(disk, entries=30)
    forgotten = log.forget(20)
    large = Entry(31, 1, EntryKind.COMMAND, bytes(SEGMENT_BYTES))
    calls = {
        "rotate": lambda: log.append(None, None, [large], sync=False),
        "reset": lambda: log.reset(HardState(9), 99, 9),
        "discard": lambda: log.discard(forgotten),
        "spare": log.prepare_spare,
    }
    disk.fail_next_sync()
    with pytest.raises(LogFailed):
        calls[call]()
    with pytest.raises(LogFailed):
        log.append(None, None, (), sync=True)
