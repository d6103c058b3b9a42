"""The position of each log entry: the segments in order, and in each the records that still count.

No I/O and no lock here: `coordinator.storage.recovery` builds it at start, `coordinator.storage.raft_log`
keeps and guards it.

Tested by tests/unit/coordinator/storage/test_raft_log.py.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from coordinator.raft.messages import Entry
from coordinator.storage.log_directory import File
from coordinator.storage.segment import SegmentHeader

Locations = list[tuple[int, int]]  # (offset, size in bytes) of records in one segment


@dataclass(slots=True)
class Segment:
    """One segment file and the places of its live entries: those not truncated since.

    `first` is the index of the first one; it is below the header's if a later segment voids all of this one.
    `size_bytes` is the end of its records, known once that is final.
    """

    name: str
    path: Path
    file: File
    header: SegmentHeader
    first: int
    size_bytes: int = 0
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes_bytes: "array[int]" = field(default_factory=lambda: array("I"))  # of the whole record
    terms: "array[int]" = field(default_factory=lambda: array("Q"))

    def add(self, offset: int, size_bytes: int, term: int) -> None:
        """Add the next entry of the log, whose record is at `offset`."""
        self.offsets.append(offset)
        self.sizes_bytes.append(size_bytes)
        self.terms.append(term)

    def truncate(self, index: int) -> None:
        """Note that entries from `index` on are no longer live."""
        keep = max(index - self.first, 0)
        self.first = min(self.first, index)
        del self.offsets[keep:], self.sizes_bytes[keep:], self.terms[keep:]

    def locate(self, low: int, high: int, size_bytes_max: int) -> Locations:
        """Return the positions of the entries from `low` on, within this segment and size, at least one."""
        first = low - self.first
        found: Locations = []
        for position in range(first, min(high - self.first, len(self.offsets))):
            size_bytes_max -= self.sizes_bytes[position]
            if size_bytes_max < 0 and found:
                break
            found.append((self.offsets[position], self.sizes_bytes[position]))
        return found


class LogIndex:
    """The segments of one log, oldest first, and the index of its last entry."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.last = 0

    @property
    def first(self) -> int:
        """Return the lowest index that the log can hold, after compaction."""
        return self.segments[0].header.first_index

    def begin(self, segment: Segment) -> None:
        """Add the next segment: all entries from its header's index on are void, if there are any."""
        self.truncate(segment.header.first_index)
        self.segments.append(segment)

    def restart(self, segment: Segment) -> list[Segment]:
        """Make this segment the only one. Return the earlier ones, which are void."""
        void = self.segments
        self.segments = [segment]
        self.last = segment.header.first_index - 1
        return void

    def add(self, entries: Sequence[Entry], records: Sequence[bytes], offset: int) -> None:
        """Add entries whose records follow one another in the last segment."""
        each = self.segments[-1]
        sizes_bytes = [len(record) for record in records]
        each.offsets.extend(accumulate(sizes_bytes[:-1], initial=offset) if entries else ())
        each.sizes_bytes.extend(sizes_bytes)
        each.terms.extend([entry.term for entry in entries])
        self.last += len(entries)

    def truncate(self, index: int) -> None:
        """Note that entries from `index` on are void."""
        if index > self.last:
            return
        for each in reversed(self.segments):
            each.truncate(index)
            if each.first < index:
                break
        self.last = index - 1

    def term(self, index: int) -> int:
        """Return the term of an entry, or of the one before the first."""
        if index == self.first - 1:
            return self.segments[0].header.previous_term
        each = self.find(index)
        return each.terms[index - each.first]

    def find(self, index: int) -> Segment:
        """Return the segment of an entry."""
        assert self.first <= index <= self.last, f"index {index} is not in the log"
        # Of segments that start at the same index, only the last has entries.
        return self.segments[bisect_right(self.segments, index, key=lambda each: each.first) - 1]

    def forget(self, index: int) -> list[Segment]:
        """Remove the oldest segments without live entries above `index`, never the last. Return them.

        A segment that a later one voids starts at the same index, and so never becomes the first: its header
        refers to entries that are gone.
        """
        keep = max(bisect_right(self.segments, index + 1, key=lambda each: each.first) - 1, 0)
        void, self.segments = self.segments[:keep], self.segments[keep:]
        return void
