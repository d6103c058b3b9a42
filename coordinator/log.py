"""The Raft log on disk: append-only segment files, one write and one sync per batch, recovered at start.

Rules: hard state before entries in every batch. A write or sync that fails is final: the page cache may have
dropped the data, so every later call raises too and the process must end. One thread appends; any thread may
read meanwhile, and sees a batch only once it is written. `coordinator.segment` has the format and the rule
that tells a torn tail from damage. Not built yet: compaction. Each segment starts with all that it needs to
be the first, so that older files can go.
"""

import fcntl
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from ca.errors import Conflict, Internal
from coordinator import segment as form
from coordinator.raft.messages import Entry, HardState, entry_size_bytes
from coordinator.segment import Header, LogDamaged, Record, RecordKind, Segment

__all__ = ["LogDamaged", "LogFailed", "LogInUse", "SegmentLog"]

SEGMENT_BYTES = 64 * 1024 * 1024  # small enough to scan in a second at start
CACHE_BYTES_MAX = 16 * 1024 * 1024  # followers that keep up are served from memory
READ_GAP_BYTES_MAX = 4096  # records that lie further apart are read one by one
Locations = list[tuple[int, int]]  # (offset, size in bytes) of records in one segment


class LogFailed(Internal):
    """The disk refused to write, sync or read the log. Nothing after it is certain: the process must end."""


class LogInUse(Internal):
    """Another process has this log open."""


class SegmentLog:
    """The log of one member. Implements `coordinator.raft.storage.Storage`; made by `open`."""

    def __init__(
        self,
        directory: Path,
        descriptor: int,
        segment_bytes: int,
        cache_bytes_max: int,
        sync: Callable[[int], None],
    ) -> None:
        self._directory = directory
        self._descriptor = descriptor  # of the directory; holds the lock
        self._segment_bytes = segment_bytes
        self._cache_bytes_max = cache_bytes_max
        self._sync = sync
        self._lock = threading.Lock()  # for the index and the cache, never held during a write or sync
        self._segments: list[Segment] = []
        self._last = 0
        self._hard_state = HardState()
        self._head_bytes = 0  # header and hard state of the last segment, if this process made it
        self._position_bytes = 0  # end of the last segment's records
        self._synced_bytes = 0  # of the last segment
        self._cache: dict[int, Entry] = {}  # the newest entries, without a gap up to the last
        self._cache_first = 1
        self._cache_bytes = 0
        self._dead: Internal | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> "SegmentLog":
        """Opens the log in `directory`, making an empty one if there is none, and cuts a torn tail.

        Raises LogInUse, LogDamaged, or LogFailed. `sync` makes a descriptor's data durable or raises OSError.
        """
        try:
            if not directory.exists():
                directory.mkdir(mode=0o700)
                _sync_directory(directory.parent)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LogFailed(f"The log directory {directory} can not be opened: {error}") from error
        log = cls(directory, descriptor, segment_bytes, cache_bytes_max, sync)
        try:
            log._take_lock()
            log._recover()
            log.append(None, None, (), sync=True)  # vouches for all that was recovered
        except BaseException:
            log._release()
            raise
        return log

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LogInUse(f"Another process has the log in {self._directory} open.") from error

    @property
    def hard_state(self) -> HardState:
        """The last hard state written; term 0 without a vote in a new log."""
        return self._hard_state

    @property
    def is_new(self) -> bool:
        """True if nothing was ever written: `bootstrap` is allowed."""
        return self._last == 0 and self._hard_state == HardState()

    @classmethod
    def bootstrap(cls, directory: Path, hard_state: HardState, entries: Sequence[Entry]) -> None:
        """Makes a log with its first content, durable on return.

        Raises Conflict if one holds something already.
        """
        log = cls.open(directory)
        try:
            if not log.is_new:
                raise Conflict(f"The log in {directory} already belongs to a member.")
            log.append(hard_state, None, entries, sync=True)
        finally:
            log.close()

    def append(
        self, hard_state: HardState | None, truncate_from: int | None, entries: Sequence[Entry], *, sync: bool
    ) -> None:
        """Writes one batch: hard state, then the truncation, then entries that follow what is left. Blocks.

        With `sync` it is durable on return, together with everything before. Raises LogFailed, for good.
        """
        self._check_alive()
        last = self._last if truncate_from is None else truncate_from - 1
        assert self.first_index() - 1 <= last <= self._last, (
            f"truncation at {truncate_from} is outside the log"
        )
        for position, entry in enumerate(entries, last + 1):
            assert entry.index == position, f"entry {entry.index} leaves a gap after {position - 1}"
        head = form.encode_hard_state(hard_state) if hard_state is not None else b""
        head += form.encode_truncate(truncate_from) if truncate_from is not None else b""
        records = [form.encode_entry(entry) for entry in entries]
        try:
            start = self._write_batch(head, records, sync=sync)
        except OSError as error:
            self._dead = LogFailed(f"The log in {self._directory} could not be written: {error}")
            raise self._dead from error
        with self._lock:
            self._hard_state = hard_state if hard_state is not None else self._hard_state
            if truncate_from is not None:
                self._truncate(truncate_from)
            self._add(entries, records, start)

    def _write_batch(self, head: bytes, records: list[bytes], *, sync: bool) -> int:
        """Writes a batch and returns the offset of its first entry record."""
        size_bytes = len(head) + sum(map(len, records))
        is_full = self._position_bytes + size_bytes > self._segment_bytes
        if is_full and self._position_bytes > self._head_bytes:
            self._rotate()
        active = self._segments[-1]
        mark = form.encode_batch_mark(active.header.marker, self._synced_bytes)
        start = self._position_bytes
        self._position_bytes = _write_at(active.descriptor, b"".join((mark, head, *records)), start)
        if sync:
            self._sync(active.descriptor)
            self._synced_bytes = self._position_bytes
        return start + len(mark) + len(head)

    def _rotate(self) -> None:
        """Ends the last segment, durable and without its preallocated tail, and starts the next."""
        active = self._segments[-1]
        os.ftruncate(active.descriptor, self._position_bytes)
        os.fsync(active.descriptor)
        self._create(active.header.sequence + 1)

    def _create(self, sequence: int) -> None:
        """Makes a segment. It gets its final name when header and hard state are durable: never torn."""
        previous_term = self.term(self._last) if self._segments else 0
        header = Header(sequence, self._last + 1, previous_term, os.urandom(form.MARKER_BYTES))
        path = self._directory / f"{sequence:010d}.log"
        unfinished = path.with_suffix(".new")
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        content = form.encode_header(header) + form.encode_hard_state(self._hard_state)
        # A preallocated file needs no new size at each sync: half as many disk writes.
        os.posix_fallocate(descriptor, 0, max(self._segment_bytes, len(content)))
        end = _write_at(descriptor, content, 0)
        os.fsync(descriptor)
        unfinished.rename(path)
        os.fsync(self._descriptor)
        with self._lock:
            self._segments.append(Segment(path, descriptor, header, self._last + 1))
        self._head_bytes = self._position_bytes = self._synced_bytes = end

    def _add(self, entries: Sequence[Entry], records: Sequence[bytes], offset: int) -> None:
        active = self._segments[-1]
        for entry, record in zip(entries, records, strict=True):
            active.add(offset, len(record), entry.term)
            offset += len(record)
            self._last = entry.index
            self._cache[entry.index] = entry
            self._cache_bytes += entry_size_bytes(entry)
        while self._cache_bytes > self._cache_bytes_max:
            self._cache_bytes -= entry_size_bytes(self._cache.pop(self._cache_first))
            self._cache_first += 1

    def _truncate(self, index: int) -> None:
        for each in reversed(self._segments):
            each.truncate(index)
            if each.first < index:
                break
        for void in range(max(index, self._cache_first), self._last + 1):
            self._cache_bytes -= entry_size_bytes(self._cache.pop(void))
        self._last = index - 1
        self._cache_first = min(self._cache_first, index)

    def first_index(self) -> int:
        """See `Storage.first_index`."""
        return self._segments[0].header.first_index

    def last_index(self) -> int:
        """See `Storage.last_index`."""
        return self._last

    def term(self, index: int) -> int:
        """See `Storage.term`."""
        self._check_alive()
        with self._lock:
            if index == self._segments[0].header.first_index - 1:
                return self._segments[0].header.previous_term
            each = self._segment_of(index)
            return each.terms[index - each.first]

    def _segment_of(self, index: int) -> Segment:
        assert self.first_index() <= index <= self._last, f"index {index} is not in the log"
        # Of segments that start at the same index all but the last were truncated to nothing.
        return self._segments[bisect_right(self._segments, index, key=lambda each: each.first) - 1]

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """See `Storage.entries`; stops at the end of a segment.

        Raises LogDamaged if the disk returns something else.
        """
        self._check_alive()
        assert low < high <= self._last + 1, f"[{low}, {high}) is not in the log"
        with self._lock:
            if low >= self._cache_first:
                return self._from_cache(low, high, max_bytes)
            each = self._segment_of(low)
            locations = _locate(each, low, high, max_bytes)
        try:
            return self._from_disk(each, low, locations)
        except OSError as error:
            self._dead = LogFailed(f"The log in {self._directory} could not be read: {error}")
            raise self._dead from error
        except LogDamaged as error:
            self._dead = error
            raise

    def _from_cache(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        for index in range(low, high):
            max_bytes -= entry_size_bytes(self._cache[index])
            if max_bytes < 0 and found:
                break
            found.append(self._cache[index])
        return found

    def _from_disk(self, each: Segment, low: int, locations: Locations) -> list[Entry]:
        found: list[Entry] = []
        for start, size_bytes, offsets in _spans(locations):
            data = os.pread(each.descriptor, size_bytes, start)
            for offset in offsets:
                record = form.read_record(data, offset - start)
                entry = form.decode_entry(record.payload) if record is not None else None
                if entry is None or entry.index != low + len(found):
                    raise LogDamaged(each.path, offset, f"entry {low + len(found)} can no longer be read")
                found.append(entry)
        return found

    def _recover(self) -> None:
        for unfinished in self._directory.glob("*.new"):
            unfinished.unlink()
        paths = sorted(self._directory.glob("*.log"))
        try:
            for path in paths:
                self._load(path, is_last=path == paths[-1])
            if not paths:
                self._create(1)
        except OSError as error:
            raise LogFailed(f"The log in {self._directory} could not be opened: {error}") from error
        self._cache_first = self._last + 1

    def _load(self, path: Path, *, is_last: bool) -> None:
        """Replays one segment into the index."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        data = path.read_bytes()
        header = form.decode_header(data, path)
        if not self._segments:
            self._last = header.first_index - 1
        elif (header.sequence, header.first_index) != (
            self._segments[-1].header.sequence + 1,
            self._last + 1,
        ):
            raise LogDamaged(
                path, 0, "the segment does not follow the one before; a file is missing or was added"
            )
        self._segments.append(Segment(path, descriptor, header, header.first_index))
        end = form.HEADER_BYTES
        for record in form.read_records(data, end):
            self._replay(path, header, record)
            end = record.end
        if not is_last and end != len(data):
            raise LogDamaged(path, end, "a record does not check, and later segments exist")
        if form.is_damage(data, end, header.marker):
            raise LogDamaged(path, end, "a record that had been synced does not check")
        if is_last:
            self._reopen_tail(descriptor, data, end)

    def _replay(self, path: Path, header: Header, record: Record) -> None:
        match record.kind:
            case RecordKind.BATCH:
                is_sound = record.payload.startswith(header.marker)
            case RecordKind.HARD_STATE:
                hard_state = form.decode_hard_state(record.payload)
                is_sound = hard_state is not None
                self._hard_state = hard_state or self._hard_state
            case RecordKind.TRUNCATE:
                index = form.decode_truncate(record.payload)
                is_sound = index is not None and self.first_index() <= index <= self._last + 1
                if is_sound and index is not None:
                    for each in self._segments:
                        each.truncate(index)
                    self._last = index - 1
            case RecordKind.ENTRY:
                entry = form.decode_entry(record.payload)
                is_sound = entry is not None and entry.index == self._last + 1
                if is_sound and entry is not None:
                    self._segments[-1].add(record.offset, record.end - record.offset, entry.term)
                    self._last = entry.index
            case _:
                is_sound = False
        if not is_sound:
            raise LogDamaged(path, record.offset, "a record checks but makes no sense here")

    def _reopen_tail(self, descriptor: int, data: bytes, end: int) -> None:
        """Cuts what a crash left behind the last intact record, and makes all before it durable."""
        if data.count(0, end) != len(data) - end:
            os.ftruncate(descriptor, end)
        os.posix_fallocate(descriptor, 0, max(self._segment_bytes, end))
        os.fsync(descriptor)
        self._position_bytes = self._synced_bytes = end

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._dead

    def close(self) -> None:
        """Ends the log: a last mark vouches for what was written, and the lock is given back."""
        if self._dead is None:
            self.append(None, None, (), sync=True)
        self._release()

    def _release(self) -> None:
        self._dead = self._dead or LogFailed(f"The log in {self._directory} is closed.")
        for each in self._segments:
            os.close(each.descriptor)
        self._segments = self._segments[:0]
        os.close(self._descriptor)


def _locate(each: Segment, low: int, high: int, max_bytes: int) -> Locations:
    """Where the entries from `low` are, within this segment and `max_bytes`, at least one."""
    first = low - each.first
    found: Locations = []
    for position in range(first, min(high - each.first, len(each.offsets))):
        max_bytes -= each.sizes_bytes[position]
        if max_bytes < 0 and found:
            break
        found.append((each.offsets[position], each.sizes_bytes[position]))
    return found


def _spans(locations: Locations) -> list[tuple[int, int, list[int]]]:
    """Joins records that lie close together into one read: (start, size in bytes, offsets of the records)."""
    spans: list[tuple[int, int, list[int]]] = []
    for offset, size_bytes in locations:
        if spans and offset - (spans[-1][0] + spans[-1][1]) <= READ_GAP_BYTES_MAX:
            start, _, offsets = spans[-1]
            offsets.append(offset)
            spans[-1] = (start, offset + size_bytes - start, offsets)
        else:
            spans.append((offset, size_bytes, [offset]))
    return spans


def _write_at(descriptor: int, data: bytes, offset: int) -> int:
    """Writes all of `data` and returns the offset after it.

    A short write goes on where it stopped, or raises.
    """
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
    return offset


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
