"""The Raft log on disk: append-only segment files, one write and one sync per batch, compacted file by file.

Hard state comes before entries in every batch. A failed write or sync is final: the page cache may have
dropped the data, so every later call raises too and the process must end. One thread changes the log (append,
reset, prepare_spare, discard). Any thread may read while it appends, and sees a batch only once it is
written. `forget` belongs to the thread that reads, and no thread may read entries during `reset`.
`coordinator.storage.segment` has the format, `coordinator.storage.recovery` the work at start.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ca.errors import Conflict, Internal
from coordinator.raft.messages import Entry, HardState
from coordinator.storage import segment as form
from coordinator.storage.entry_cache import EntryCache
from coordinator.storage.log_directory import Directory, File, LogInUse, OsDirectory
from coordinator.storage.promises import PromiseRecord, Promises
from coordinator.storage.raft_log_index import Locations, LogIndex, Segment
from coordinator.storage.recovery import recover
from coordinator.storage.segment import HeaderFlag, LogDamaged, SegmentHeader
from runtime.disk import NO_ROOM_ERRORS

__all__ = ["ForgottenSegments", "LogDamaged", "LogFailed", "LogInUse", "SegmentLog"]

SEGMENT_BYTES = 32 * 1024 * 1024  # small enough to scan in half a second at start
CACHE_BYTES_MAX = 16 * 1024 * 1024  # followers that keep up read from memory
READ_GAP_BYTES_MAX = 4096  # records with larger gaps are read one by one
SPARE_NAME = "spare" + form.UNFINISHED_SUFFIX


class LogFailed(Internal):
    """The disk refused to write, sync or read the log. Later bytes are uncertain: the process must end."""


@dataclass(frozen=True, slots=True)
class ForgottenSegments:
    """Segments that were removed from the log's index and wait for `SegmentLog.discard`, oldest first."""

    segments: tuple[Segment, ...]


class SegmentLog:
    """The log of one member.

    Implements `coordinator.raft.storage.Storage`; created by `open` or `open_in`.
    """

    def __init__(
        self,
        directory: Directory,
        segment_bytes: int,
        cache_bytes_max: int,
        draw_bytes: Callable[[int], bytes],
    ) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._draw_bytes = draw_bytes
        self._lock = threading.Lock()  # for the index and the cache, never held during a write or sync
        self._index = LogIndex()
        self._cache = EntryCache(cache_bytes_max)
        self._hard_state = HardState()
        self._promises = Promises(directory)
        self._spare: File | None = None
        self._forgotten: deque[ForgottenSegments] = deque()
        self._head_bytes = 0  # header and hard state of the last segment, if this process created it
        self._position_bytes = 0  # end of the last segment's records
        self._synced_bytes = 0  # of the last segment
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
        """Open the log in `directory`, creating an empty one if there is none, and cut a torn tail.

        Raises LogInUse, LogDamaged, or LogFailed. `sync` makes a descriptor's data durable or raises OSError.
        """
        try:
            found = OsDirectory(directory, sync=sync)
        except OSError as error:
            raise LogFailed(f"The log directory {directory} cannot be opened: {error}") from error
        return cls.open_in(found, segment_bytes=segment_bytes, cache_bytes_max=cache_bytes_max)

    @classmethod
    def open_in(
        cls,
        directory: Directory,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        draw_bytes: Callable[[int], bytes] = os.urandom,
    ) -> "SegmentLog":
        """Open the log in any directory, which the log closes. `draw_bytes` makes markers of new segments."""
        log = cls(directory, segment_bytes, cache_bytes_max, draw_bytes)
        try:
            directory.lock()
            log._start()
            log.append(None, None, (), sync=True)  # confirms that all recovered bytes are synced
        except BaseException:
            log._release()
            raise
        return log

    def _start(self) -> None:
        try:
            recovered = recover(self._directory, self._index, self._segment_bytes)
            self._hard_state = recovered.hard_state
            self._position_bytes = self._synced_bytes = recovered.end_bytes
            if not self._index.segments:
                self._index.begin(self._make_segment(SegmentHeader(1, 1, 0, b""), HardState()))
            self._promises.open()
        except OSError as error:
            where = self._directory.path("")
            raise LogFailed(f"The log in {where} could not be opened: {error}") from error
        self._cache.clear(self._index.last + 1)

    @property
    def hard_state(self) -> HardState:
        """Return the last hard state written; term 0 without a vote in a new log."""
        return self._hard_state

    @property
    def is_new(self) -> bool:
        """Return True if nothing was ever written: `bootstrap` is allowed."""
        return self._index.last == 0 and self._hard_state == HardState()

    @property
    def promised(self) -> PromiseRecord:
        """Return the member's promises, from the file next to the segments.

        That file may know of terms and votes that the segments have lost.
        """
        return self._promises.newest

    def promise(self, promised: PromiseRecord) -> None:
        """Replace the content of that file, durable on return. Blocks. Raises LogFailed, for good."""
        self._check_alive()
        try:
            self._promises.write(promised)
        except OSError as error:
            raise self._fail("written", error) from error

    @classmethod
    def bootstrap(cls, directory: Path, hard_state: HardState, entries: Sequence[Entry]) -> None:
        """Create a log with its first content, durable on return.

        Raises Conflict if one exists with content.
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
        """Write one batch: hard state, then the truncation, then entries that follow the rest. Blocks.

        With `sync` it is durable on return, together with everything before. Raises LogFailed, for good.
        """
        self._check_alive()
        last = self._index.last if truncate_from is None else truncate_from - 1
        assert self._index.first - 1 <= last <= self._index.last, (
            f"truncation at {truncate_from} is outside the log"
        )
        for position, entry in enumerate(entries, last + 1):
            assert entry.index == position, f"entry {entry.index} leaves a gap after {position - 1}"
        records = [form.encode_entry(entry) for entry in entries]
        promise = hard_state if sync else None
        try:
            if self._needs_segment(truncate_from, sum(map(len, records))):
                self._rotate(hard_state, last)
                hard_state = truncate_from = None
            start = self._write_batch(hard_state, truncate_from, records, sync=sync)
            if (
                promise is not None
            ):  # after the log, which may lose its end: the same promises are stored here
                self._promises.keep(promise)
        except OSError as error:
            raise self._fail("written", error) from error
        with self._lock:
            self._take(hard_state, truncate_from)
            self._index.add(entries, records, start)
            self._cache.add(entries)

    def _needs_segment(self, truncate_from: int | None, size_bytes: int) -> bool:
        """Return True if the next segment must begin.

        Either this one is full and the next one has room, or the batch voids entries of older ones, which a
        header has to say.

        While there is no room for the next one, the last one accepts what still fits on the disk: entries
        that free room.
        """
        if truncate_from is not None and truncate_from < self._index.segments[-1].header.first_index:
            return True
        is_full = self._position_bytes + size_bytes > self._segment_bytes
        return is_full and self._position_bytes > self._head_bytes and self._has_room_for_segment()

    def _has_room_for_segment(self) -> bool:
        return self.is_spare_ready or (self.free_bytes() >= self._segment_bytes and self.prepare_spare())

    def _write_batch(
        self, hard_state: HardState | None, truncate_from: int | None, records: list[bytes], *, sync: bool
    ) -> int:
        """Write a batch and return the offset of its first entry record."""
        active = self._index.segments[-1]
        head = form.encode_batch_mark(active.header.marker, self._synced_bytes)
        if hard_state is not None:
            head += form.encode_hard_state(hard_state)
        if truncate_from is not None:
            head += form.encode_truncate(truncate_from)
        start = self._position_bytes
        data = b"".join((head, *records))
        active.file.write(start, data)
        self._position_bytes = start + len(data)
        if sync:
            active.file.sync()
            self._synced_bytes = self._position_bytes
        return start + len(head)

    def _rotate(self, hard_state: HardState | None, last: int) -> None:
        """End the segment, durable and without its preallocated tail. The next one begins after `last`."""
        active = self._index.segments[-1]
        active.file.truncate(self._position_bytes)
        active.file.sync()
        active.size_bytes = self._position_bytes
        header = SegmentHeader(active.header.sequence + 1, last + 1, self._index.term(last), b"")
        segment = self._make_segment(header, hard_state or self._hard_state)
        with self._lock:
            self._take(hard_state, last + 1 if last < self._index.last else None)
            self._index.begin(segment)

    def _take(self, hard_state: HardState | None, truncate_from: int | None) -> None:
        if hard_state is not None:
            self._hard_state = hard_state
        if truncate_from is not None:
            self._cache.truncate(truncate_from, self._index.last)
            self._index.truncate(truncate_from)

    def _make_segment(self, header: SegmentHeader, hard_state: HardState) -> Segment:
        """Create a segment with a random marker.

        It gets its final name when header and hard state are durable, so it is never torn. If it is the spare
        file, it needs no room on the disk.
        """
        header = replace(header, marker=self._draw_bytes(form.MARKER_BYTES))
        content = form.encode_header(header) + form.encode_hard_state(hard_state)
        name = form.segment_name(header.sequence)
        source = SPARE_NAME if self._spare is not None else name + form.UNFINISHED_SUFFIX
        file, self._spare = self._spare or self._directory.create(source), None
        try:
            # A preallocated file needs no new size at each sync: half as many disk writes.
            file.allocate(max(self._segment_bytes, len(content)))
            file.write(0, content)
            file.sync()
            self._directory.rename(source, name)
            self._directory.sync()
        except OSError:
            file.close()
            raise
        self._head_bytes = self._position_bytes = self._synced_bytes = len(content)
        return Segment(name, self._directory.path(name), file, header, header.first_index)

    @property
    def is_spare_ready(self) -> bool:
        """Return True if the next segment needs no room on the disk."""
        return self._spare is not None

    def prepare_spare(self) -> bool:
        """Preallocate the file of the next segment. Return False if there is no room for it. Blocks.

        A restart deletes it, so that a start on a full disk has some room.
        """
        self._check_alive()
        if self._spare is not None:
            return True
        try:
            self._spare = self._make_spare()
        except OSError as error:
            if error.errno not in NO_ROOM_ERRORS:
                raise self._fail("written", error) from error
        return self._spare is not None

    def _make_spare(self) -> File:
        file = self._directory.create(SPARE_NAME)
        try:
            file.allocate(self._segment_bytes)
            file.sync()
        except OSError:
            file.close()
            self._directory.remove(SPARE_NAME)
            raise
        return file

    def reset(self, hard_state: HardState, index: int, term: int) -> None:
        """Restart the log after a snapshot that ends at `index`: its earlier content is void. Blocks.

        Durable on return, and one step: after a crash there is the old log or the new one. The installation
        in `promised` has ended then.
        """
        self._check_alive()
        assert hard_state.term >= self._hard_state.term, f"term {hard_state.term} falls back"
        sequence = self._index.segments[-1].header.sequence + 1
        try:
            segment = self._make_segment(
                SegmentHeader(sequence, index + 1, term, b"", HeaderFlag.BASE), hard_state
            )
            with self._lock:
                void = self._index.restart(segment)
                self._cache.clear(index + 1)
                self._hard_state = hard_state
            self._remove(void)
            settled = replace(self.promised, term=hard_state.term, vote=hard_state.vote, installing=(0, 0))
            self._promises.write(settled)
        except OSError as error:
            raise self._fail("written", error) from error

    def forget(self, index: int) -> ForgottenSegments:
        """Remove the oldest segments without entries above `index`, never the last, from the index alone.

        This may raise `first_index`. `discard` removes their files, in the order of these calls.
        """
        with self._lock:
            forgotten = ForgottenSegments(tuple(self._index.forget(index)))
        if forgotten.segments:
            self._forgotten.append(forgotten)
        return forgotten

    def discard(self, forgotten: ForgottenSegments) -> None:
        """Remove the files of forgotten segments. Blocks. Raises LogFailed."""
        self._check_alive()
        if not forgotten.segments:
            return
        assert self._forgotten[0] is forgotten, "segments are discarded in the order in which they went"
        self._forgotten.popleft()
        try:
            self._remove(forgotten.segments)
        except OSError as error:
            raise self._fail("compacted", error) from error

    def _remove(self, segments: Sequence[Segment]) -> None:
        """Remove one by one, oldest first: a lost file after an existing older one would look like a gap."""
        for each in segments:
            each.file.close()
        for each in segments:
            self._directory.remove(each.name)
            self._directory.sync()

    def size_bytes(self) -> int:
        """Return the size of the records of all segments, without preallocated space."""
        with self._lock:
            return sum(each.size_bytes for each in self._index.segments[:-1]) + self._position_bytes

    def free_bytes(self) -> int:
        """Return the free room on the log's disk. Raises OSError."""
        return self._directory.free_bytes()

    def first_index(self) -> int:
        """See `Storage.first_index`."""
        return self._index.first

    def last_index(self) -> int:
        """See `Storage.last_index`."""
        return self._index.last

    def term(self, index: int) -> int:
        """See `Storage.term`."""
        self._check_alive()
        with self._lock:
            return self._index.term(index)

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """See `Storage.entries`; stops at the end of a segment.

        Raises LogDamaged if the disk returns something else.
        """
        self._check_alive()
        with self._lock:
            assert self._index.first <= low < high <= self._index.last + 1, (
                f"[{low}, {high}) is not in the log"
            )
            if low >= self._cache.first:
                return self._cache.entries(low, high, max_bytes)
            each = self._index.find(low)
            locations = each.locate(low, high, max_bytes)
        try:
            return _read(each, low, locations)
        except OSError as error:
            raise self._fail("read", error) from error
        except LogDamaged as error:
            self._dead = error
            raise

    def _fail(self, what: str, error: OSError) -> LogFailed:
        self._dead = LogFailed(f"The log in {self._directory.path('')} could not be {what}: {error}")
        return self._dead

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise self._dead

    def close(self) -> None:
        """Close the log: a last mark confirms the written bytes, and the lock is released."""
        try:
            if self._dead is None and self._synced_bytes < self._position_bytes:
                # A mark only confirms bytes that were synced before it.
                self.append(None, None, (), sync=True)
            if self._dead is None:
                self.append(None, None, (), sync=True)
        finally:
            self._release()

    def _release(self) -> None:
        self._dead = self._dead or LogFailed(f"The log in {self._directory.path('')} is closed.")
        forgotten = [each for group in self._forgotten for each in group.segments]
        for each in (*forgotten, *self._index.segments):
            each.file.close()
        if self._spare is not None:
            self._spare.close()
        self._promises.close()
        self._forgotten.clear()
        self._index.segments, self._spare = [], None
        self._directory.close()


def _read(each: Segment, low: int, locations: Locations) -> list[Entry]:
    """Return the entries from `low` on at these places of a segment. Raises LogDamaged or OSError."""
    found: list[Entry] = []
    for start, size_bytes, offsets in _spans(locations):
        data = each.file.read(start, size_bytes)
        for offset in offsets:
            record = form.read_record(data, offset - start)
            entry = form.decode_entry(record.payload) if record is not None else None
            if entry is None or entry.index != low + len(found):
                raise LogDamaged(each.path, offset, f"entry {low + len(found)} can no longer be read")
            found.append(entry)
    return found


def _spans(locations: Locations) -> list[tuple[int, int, list[int]]]:
    """Join records that are close together into one read: (start, size in bytes, offsets of the records)."""
    spans: list[tuple[int, int, list[int]]] = []
    for offset, size_bytes in locations:
        if spans and offset - (spans[-1][0] + spans[-1][1]) <= READ_GAP_BYTES_MAX:
            start, _, offsets = spans[-1]
            offsets.append(offset)
            spans[-1] = (start, offset + size_bytes - start, offsets)
        else:
            spans.append((offset, size_bytes, [offset]))
    return spans
