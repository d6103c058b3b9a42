"""The log on disk: what is written is there after any crash, and what is damaged is never guessed at."""

import os
import shutil
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ca.errors import Conflict
from coordinator.raft.messages import Entry, EntryKind, HardState
from coordinator.storage import segment
from coordinator.storage.raft_log import LogDamaged, LogFailed, LogInUse, SegmentLog

SEGMENT_BYTES = 4096


def make_entries(first: int, count: int, *, term: int = 1, size_bytes: int = 30) -> list[Entry]:
    return [
        Entry(i, term, EntryKind.COMMAND, bytes([i % 251]) * size_bytes) for i in range(first, first + count)
    ]


def open_log(directory: Path, *, cache_bytes_max: int = 1 << 20) -> SegmentLog:
    return SegmentLog.open(directory, segment_bytes=SEGMENT_BYTES, cache_bytes_max=cache_bytes_max)


def read_all(log: SegmentLog, *, max_bytes: int = 200) -> list[Entry]:
    found: list[Entry] = []
    while log.first_index() + len(found) <= log.last_index():
        found += log.entries(log.first_index() + len(found), log.last_index() + 1, max_bytes)
    return found


def crash(directory: Path, target: Path) -> Path:
    """What another process would find, had this one died now."""
    shutil.copytree(directory, target)
    return target


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SegmentLog]:
    log = open_log(tmp_path / "log")
    yield log
    log.close()


def test_new_log_is_empty(log: SegmentLog) -> None:
    assert (log.first_index(), log.last_index(), log.term(0)) == (1, 0, 0)
    assert log.hard_state == HardState()
    assert log.is_new


@pytest.mark.parametrize("cache_bytes_max", [0, 300, 1 << 20], ids=["no cache", "small cache", "large cache"])
def test_log_over_many_segments_is_there_after_reopening(tmp_path: Path, cache_bytes_max: int) -> None:
    log = open_log(tmp_path / "log", cache_bytes_max=cache_bytes_max)
    entries = make_entries(1, 300, size_bytes=100)
    for start in range(0, 300, 7):
        log.append(HardState(1, "a", start), None, entries[start : start + 7], sync=True)
    before = read_all(log)
    log.close()

    log = open_log(tmp_path / "log", cache_bytes_max=cache_bytes_max)

    assert before == read_all(log) == entries
    assert log.hard_state == HardState(1, "a", 294)
    assert log.term(300) == 1
    assert len(list((tmp_path / "log").glob("*.log"))) > 5
    log.close()


_BATCHES = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "truncate", "vote", "reopen", "crash"]),
        st.integers(0, 12),
        st.integers(0, 700),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(_BATCHES)
def test_log_equals_a_list(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[str, int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("model") / "log"
    log = open_log(directory, cache_bytes_max=1000)
    model: list[Entry] = []
    hard_state = HardState()
    for term, (action, count, size_bytes) in enumerate(batches, 1):
        if action in ("reopen", "crash"):
            directory = (
                crash(directory, directory.with_name(f"log{term}")) if action == "crash" else directory
            )
            log.close()
            log = open_log(directory, cache_bytes_max=1000)
        else:
            keep = max(len(model) - count, 0) if action == "truncate" else len(model)
            new = make_entries(keep + 1, count, term=term, size_bytes=size_bytes) if action != "vote" else []
            hard_state = HardState(term, "a" * count, 0)
            log.append(hard_state, keep + 1 if keep < len(model) else None, new, sync=action == "append")
            model[keep:] = new
        assert (read_all(log), log.hard_state) == (model, hard_state)
        assert [log.term(entry.index) for entry in model] == [entry.term for entry in model]
    log.close()


def test_record_torn_at_any_byte_is_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    kept = make_entries(1, 3)
    log.append(HardState(1, "a", 0), None, kept, sync=True)
    intact_bytes = log._position_bytes
    log.append(HardState(2, "b", 3), None, make_entries(4, 2, term=2), sync=True)
    end_bytes = log._position_bytes
    data = next((tmp_path / "log").glob("*.log")).read_bytes()
    log.close()

    for cut in range(intact_bytes, end_bytes):
        for number, tail in enumerate((b"", bytes(SEGMENT_BYTES - cut), b"\xa5" * 100)):
            directory = tmp_path / f"{cut}-{number}"
            directory.mkdir()
            (directory / "0000000001.log").write_bytes(data[:cut] + tail)
            torn = open_log(directory)
            found = read_all(torn)
            assert found[:3] == kept
            assert found in (kept, kept + make_entries(4, 1, term=2))
            assert torn.hard_state in (HardState(1, "a", 0), HardState(2, "b", 3))
            assert not (len(found) > 3 and torn.hard_state.term < 2), "hard state comes before entries"
            torn.append(None, None, make_entries(len(found) + 1, 1, term=9), sync=True)
            torn.close()
            reopened = open_log(directory)
            assert len(read_all(reopened)) == len(found) + 1
            reopened.close()
            shutil.rmtree(directory)


def test_flipped_bit_before_synced_records_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    for first in range(1, 10):
        log.append(HardState(1, "a", 0), None, make_entries(first, 1), sync=True)
    path = next((tmp_path / "log").glob("*.log"))
    last_batch_bytes = log._position_bytes - 150
    log.close()
    data = path.read_bytes()

    for position in range(0, last_batch_bytes, 5):
        directory = tmp_path / str(position)
        directory.mkdir()
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        (directory / path.name).write_bytes(damaged)
        with pytest.raises(LogDamaged) as caught:
            open_log(directory)
        assert path.name in caught.value.details
        assert "Rebuild this member from its peers" in caught.value.details
        assert caught.value.offset <= position


def test_flipped_bit_in_the_last_batch_is_refused_after_a_clean_close(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    log.append(HardState(1, "a", 0), None, make_entries(1, 1), sync=True)
    end_bytes = log._position_bytes
    log.close()
    path = next((tmp_path / "log").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[end_bytes - 3] ^= 1
    path.write_bytes(data)

    with pytest.raises(LogDamaged):
        open_log(tmp_path / "log")


def test_closing_vouches_for_batches_that_nobody_had_synced(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    log.append(None, None, make_entries(1, 1), sync=False)
    end_bytes = log._position_bytes
    log.close()
    path = next((tmp_path / "log").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[end_bytes - 3] ^= 1
    path.write_bytes(data)

    with pytest.raises(LogDamaged):
        open_log(tmp_path / "log")


def test_unsynced_batches_with_a_hole_are_a_tear(tmp_path: Path) -> None:
    # Pages of one unsynced write may reach the disk in any order: the first batch is missing, the second is
    # whole.
    log = open_log(tmp_path / "log")
    log.append(None, None, make_entries(1, 1), sync=True)
    hole_bytes = log._position_bytes
    log.append(None, None, make_entries(2, 1), sync=False)
    log.append(None, None, make_entries(3, 1), sync=False)
    directory = crash(tmp_path / "log", tmp_path / "crashed")
    log.close()
    path = next(directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[hole_bytes : hole_bytes + 8] = bytes(8)
    path.write_bytes(data)

    torn = open_log(directory)

    assert read_all(torn) == make_entries(1, 1)
    torn.close()


def test_what_lay_behind_a_tear_never_comes_back(tmp_path: Path) -> None:
    # The mark that opening writes has the size of the batch that was lost, so it ends where an old intact
    # batch begins.
    log = open_log(tmp_path / "log")
    log.append(None, None, make_entries(1, 1), sync=True)
    hole_bytes = log._position_bytes
    log.append(None, None, (), sync=False)
    log.append(None, None, make_entries(2, 1), sync=False)
    directory = crash(tmp_path / "log", tmp_path / "crashed")
    log.close()
    path = next(directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[hole_bytes] ^= 1
    path.write_bytes(data)
    torn = open_log(directory)

    again = open_log(crash(directory, tmp_path / "again"))

    assert read_all(torn) == read_all(again) == make_entries(1, 1)
    torn.close()
    again.close()


def test_data_that_looks_like_a_batch_does_not_pass_for_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    forged = segment.encode_batch_mark(bytes(8), 1 << 40)
    log.append(None, None, [Entry(1, 1, EntryKind.COMMAND, forged * 3)], sync=False)
    path = next((tmp_path / "log").glob("*.log"))
    data = bytearray(path.read_bytes())
    start = data.index(forged)
    data[start - 20] ^= 1
    directory = tmp_path / "torn"
    directory.mkdir()
    (directory / path.name).write_bytes(data)
    log.close()

    torn = open_log(directory)

    assert torn.last_index() == 0
    torn.close()


def fill(directory: Path) -> list[Path]:
    log = open_log(directory)
    for first in range(1, 200, 10):
        log.append(HardState(1, "a", 0), None, make_entries(first, 10, size_bytes=90), sync=True)
    log.close()
    return sorted(directory.glob("*.log"))


def test_missing_segment_is_damage(tmp_path: Path) -> None:
    paths = fill(tmp_path / "log")
    paths[1].unlink()

    with pytest.raises(LogDamaged, match="does not follow the one before"):
        open_log(tmp_path / "log")


@pytest.mark.parametrize("keep", [0, 20, -1], ids=["empty", "torn header", "torn record"])
def test_torn_segment_before_the_last_is_damage(tmp_path: Path, keep: int) -> None:
    paths = fill(tmp_path / "log")
    paths[1].write_bytes(paths[1].read_bytes()[:keep])

    with pytest.raises(LogDamaged, match=paths[1].name):
        open_log(tmp_path / "log")


def test_later_format_is_refused(tmp_path: Path) -> None:
    paths = fill(tmp_path / "log")
    header = segment.encode_header(segment.SegmentHeader(1, 1, 0, bytes(8)))
    body = header[:8] + (99).to_bytes(4, "little") + header[12:-4]
    paths[0].write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))

    with pytest.raises(LogDamaged, match="format version 99"):
        open_log(tmp_path / "log")


def test_unfinished_segment_of_a_crash_is_removed(tmp_path: Path) -> None:
    paths = fill(tmp_path / "log")
    unfinished = paths[-1].with_name("9999999999.new")
    unfinished.write_bytes(b"half a header")

    log = open_log(tmp_path / "log")

    assert not unfinished.exists()
    assert log.last_index() == 200
    log.close()


def test_each_segment_begins_with_the_hard_state(tmp_path: Path) -> None:
    paths = fill(tmp_path / "log")

    for path in paths[1:]:
        data = path.read_bytes()
        record = segment.read_record(data, segment.HEADER_BYTES)
        assert record is not None
        assert segment.decode_hard_state(record.payload) == HardState(1, "a", 0)


def test_log_whose_first_segments_are_gone_starts_where_the_next_begins(tmp_path: Path) -> None:
    paths = fill(tmp_path / "log")
    first = segment.decode_header(paths[1].read_bytes(), paths[1]).first_index
    paths[0].unlink()

    log = open_log(tmp_path / "log")

    assert (log.first_index(), log.term(first - 1)) == (first, 1)
    assert read_all(log)[0].index == first
    log.close()


@pytest.mark.parametrize("fails", ["sync", "write"])
def test_failing_write_or_sync_is_final(tmp_path: Path, fails: str) -> None:
    failing = False

    def sync(descriptor: int) -> None:
        if failing:
            raise OSError(5, "Input/output error")
        os.fdatasync(descriptor)

    log = SegmentLog.open(tmp_path / "log", segment_bytes=SEGMENT_BYTES, sync=sync)
    log.append(None, None, make_entries(1, 1), sync=True)
    failing = fails == "sync"
    if fails == "write":
        shutil.rmtree(tmp_path / "log")  # the next segment can not be made
    too_large = SEGMENT_BYTES if fails == "write" else 10

    with pytest.raises(LogFailed):
        log.append(None, None, make_entries(2, 1, size_bytes=too_large), sync=True)
    failing = False

    for call in (
        lambda: log.append(None, None, make_entries(2, 1), sync=True),
        lambda: log.term(1),
        lambda: log.entries(1, 2, 100),
    ):
        with pytest.raises(LogFailed):
            call()
    log.close()


def test_log_is_open_in_one_process_only(tmp_path: Path, log: SegmentLog) -> None:
    with pytest.raises(LogInUse, match="already runs in this directory"):
        open_log(tmp_path / "log")
    log.append(None, None, make_entries(1, 1), sync=True)


def test_bit_that_rots_while_running_is_noticed_on_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", cache_bytes_max=0)
    log.append(None, None, make_entries(1, 1), sync=True)
    path = next((tmp_path / "log").glob("*.log"))
    with path.open("r+b") as file:
        file.seek(log._position_bytes - 5)
        file.write(b"\xee")

    with pytest.raises(LogDamaged, match="entry 1 can no longer be read"):
        log.entries(1, 2, 100)
    with pytest.raises(LogDamaged):
        log.append(None, None, make_entries(2, 1), sync=True)
    log.close()


def test_bootstrap_happens_once(tmp_path: Path) -> None:
    SegmentLog.bootstrap(tmp_path / "log", HardState(1, "", 1), make_entries(1, 1))

    with pytest.raises(Conflict):
        SegmentLog.bootstrap(tmp_path / "log", HardState(1, "", 1), make_entries(1, 1))
    log = open_log(tmp_path / "log")
    assert (log.hard_state, read_all(log)) == (HardState(1, "", 1), make_entries(1, 1))
    log.close()


def test_reads_during_appends_see_whole_entries(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", cache_bytes_max=500)
    entries = make_entries(1, 2000)

    def write() -> None:
        for start in range(0, 2000, 10):
            log.append(HardState(1, "a", start), None, entries[start : start + 10], sync=False)

    writer = threading.Thread(target=write)
    writer.start()
    for _ in range(5000):  # bounded: on some versions of CPython a reader that spins starves the writer
        if not writer.is_alive():
            break
        if last := log.last_index():
            low = max(last - 50, 1)
            found = log.entries(low, last + 1, 10_000)
            assert found == entries[low - 1 : low - 1 + len(found)]
    writer.join()

    assert read_all(log, max_bytes=100_000) == entries
    log.close()


@pytest.mark.parametrize("entries", [make_entries(3, 1), make_entries(1, 1) + make_entries(3, 1)])
def test_gap_in_the_log_stops_the_process(log: SegmentLog, entries: list[Entry]) -> None:
    with pytest.raises(AssertionError, match="leaves a gap"):
        log.append(None, None, entries, sync=True)


def test_log_on_real_files_is_compacted_and_begun_anew(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    log = open_log(tmp_path / "log")
    before = len(list((tmp_path / "log").iterdir()))
    log.discard(log.forget(150))
    assert len(list((tmp_path / "log").iterdir())) < before
    assert 100 < log.first_index() <= 151
    assert [entry.index for entry in read_all(log)] == list(range(log.first_index(), 201))
    log.close()

    log = open_log(tmp_path / "log")
    assert log.prepare_spare()
    log.reset(HardState(3, "b", 500), 500, 2)
    assert not log.is_spare_ready
    log.append(None, None, make_entries(501, 3, term=3), sync=True)
    log.close()

    log = open_log(tmp_path / "log")
    assert (log.first_index(), log.last_index(), log.term(500)) == (501, 503, 2)
    assert log.hard_state == HardState(3, "b", 500)
    assert sorted(path.suffix for path in (tmp_path / "log").iterdir()) == ["", ".log"]  # and the promises
    assert log.free_bytes() > 0
    log.close()


def test_forgotten_segments_whose_files_are_still_there_come_back_at_start(tmp_path: Path) -> None:
    fill(tmp_path / "log")
    log = open_log(tmp_path / "log")
    forgotten = log.forget(150)
    assert forgotten.segments
    log.close()

    log = open_log(tmp_path / "log")
    assert (log.first_index(), log.last_index()) == (1, 200)
    log.close()
