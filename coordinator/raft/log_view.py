"""One member's log as the core sees it: the entries on disk, followed by those not confirmed there yet.

Entries wait in memory from their acceptance until the `advance` of the Ready that carried them; earlier ones
are read through `Storage`. While a batch is being written the log may change again: a new leader may
overwrite entries of the batch. Then the next batch truncates first, and the overwritten entries never count
as stable. A restored snapshot replaces the whole log, from its acceptance on; until its Ready is done, the
entries on disk are void.
"""

from collections import deque
from collections.abc import Sequence

from coordinator.raft.membership import MembershipHistory
from coordinator.raft.messages import Entry, SnapshotMeta, entry_size_bytes
from coordinator.raft.storage import Storage, take_up_to

TAIL_READ_BYTES = 4 * 1024 * 1024  # at once, to read the entries behind the applied index


class LogView:
    """Entries, the commit index, how far they were handed out and applied, and the membership in them."""

    __slots__ = (
        "_applying",
        "_applying_bytes",
        "_restored",
        "_snapshot_due",
        "_storage",
        "_truncate_from",
        "_unstable",
        "_writing_last",
        "applied",
        "commit",
        "handed_out",
        "memberships",
        "stable_last",
    )

    def __init__(
        self, storage: Storage, *, commit: int, applied: int, memberships: MembershipHistory
    ) -> None:
        self._storage = storage
        self.memberships = memberships
        self._restored: SnapshotMeta | None = None  # replaces all entries on disk, which are void
        self._snapshot_due = False  # the next batch begins with the restored snapshot
        self._applying: deque[tuple[int, int]] = deque()  # (last index, bytes) of the entries handed out
        self._applying_bytes = 0
        self._unstable: list[Entry] = []  # follows stable_last
        self._truncate_from: int | None = None  # the next batch drops this index and all above on disk
        self._writing_last = 0  # last index of the batch being written, 0 if none
        self.stable_last = storage.last_index()
        self.commit = max(commit, applied)  # applied entries were committed, even if that was not synced
        self.applied = applied
        self.handed_out = applied
        assert self.commit <= self.stable_last, (
            f"commit {self.commit} is beyond the log's end {self.stable_last}"
        )
        assert applied >= storage.first_index() - 1, (
            f"applied index {applied} is older than the log's first entry"
        )
        self._read_memberships()

    def _read_memberships(self) -> None:
        index = self.applied + 1
        while index <= self.stable_last:
            entries = self._storage.entries(index, self.stable_last + 1, TAIL_READ_BYTES)
            self.memberships.note_appended(entries)
            index += len(entries)
        self.memberships.note_committed(self.commit)

    @property
    def last_index(self) -> int:
        """Return the index of the last entry, on disk or not."""
        return self.stable_last + len(self._unstable)

    @property
    def last_term(self) -> int:
        """Return the term of the last entry, 0 in an empty log."""
        return self._unstable[-1].term if self._unstable else self.term(self.stable_last)

    @property
    def has_unstable(self) -> bool:
        """Return True if entries or a snapshot wait for a batch."""
        return bool(self._unstable) or self._snapshot_due

    @property
    def first_index(self) -> int:
        """Return the lowest index that can be read."""
        return self._storage.first_index() if self._restored is None else self._restored.index + 1

    def term(self, index: int) -> int:
        """Return the term at `index`, which must be in the log or just before its first entry."""
        assert index <= self.last_index, f"index {index} is beyond the log's end {self.last_index}"
        if index > self.stable_last:
            return self._unstable[index - self.stable_last - 1].term
        if self._restored is not None:
            assert index == self._restored.index, f"index {index} is before the restored snapshot"
            return self._restored.term
        return self._storage.term(index)

    def matches(self, index: int, term: int) -> bool:
        """Return True if an entry of this term is at this index (dissertation, 3.5)."""
        return self.first_index - 1 <= index <= self.last_index and self.term(index) == term

    def is_up_to_date(self, index: int, term: int) -> bool:
        """Return True if a log ending in this index and term is as good as ours (dissertation, 3.6.1)."""
        return (term, index) >= (self.last_term, self.last_index)

    def last_index_within_term(self, index: int, term: int) -> int:
        """Return the highest index up to `index` with a term up to `term`, where two logs may still meet.

        Terms never decrease along a log, so halving finds it; whole terms are skipped at once (dissertation,
        3.5, end).
        """
        low, high = self.first_index - 1, min(index, self.last_index)
        while low < high:
            middle = (low + high + 1) // 2
            if self.term(middle) <= term:
                low = middle
            else:
                high = middle - 1
        return low

    def entries(self, low: int, high: int, max_bytes: int) -> list[Entry]:
        """Return entries from `low` to before `high`, at least one, otherwise within `max_bytes`."""
        assert self.first_index <= low < high <= self.last_index + 1, f"[{low}, {high}) is not in the log"
        border = self.stable_last + 1
        found: list[Entry] = []
        if low < border:
            found = self._storage.entries(low, min(high, border), max_bytes)
            assert found, f"storage gave nothing for [{low}, {high})"
            if low + len(found) < border:
                return found
        found = found + self._unstable[max(low - border, 0) : max(high - border, 0)]
        return take_up_to(found, max_bytes, at_least=1)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add a leader's own entries, which follow the last."""
        assert entries[0].index == self.last_index + 1, f"entry {entries[0].index} leaves a gap"
        assert entries[0].term >= self.last_term, f"term {entries[0].term} falls back"
        self._unstable.extend(entries)
        self.memberships.note_appended(entries)

    def merge(self, previous_index: int, entries: Sequence[Entry]) -> None:
        """Add a leader's entries after `previous_index`, where the logs meet.

        Existing entries stay untouched, so an old or repeated append never shortens the log (dissertation,
        3.5). Only a real conflict truncates, and never at or below the commit index.
        """
        for position, entry in enumerate(entries):
            assert entry.index == previous_index + 1 + position, (
                f"entry {entry.index} does not follow its append"
            )
            if not self.matches(entry.index, entry.term):
                self._replace_from(entry.index, entries[position:])
                return

    def _replace_from(self, index: int, entries: Sequence[Entry]) -> None:
        assert index > self.commit, f"conflict at {index}, at or below the commit index {self.commit}"
        if index <= max(self.stable_last, self._writing_last):
            pending = self._truncate_from
            self._truncate_from = index if pending is None else min(pending, index)
        if index <= self.stable_last:
            self.stable_last = index - 1
            self._unstable.clear()
        del self._unstable[index - self.stable_last - 1 :]
        self._unstable.extend(entries)
        self.memberships.note_truncated(index)
        self.memberships.note_appended(entries)

    def commit_to(self, index: int) -> bool:
        """Raise the commit index, which never falls. Return True if it was raised."""
        assert index <= self.last_index, f"commit {index} is beyond the log's end {self.last_index}"
        if index <= self.commit:
            return False
        self.commit = index
        self.memberships.note_committed(index)
        return True

    def restore(self, meta: SnapshotMeta) -> None:
        """Replace the log by a snapshot, which is committed, and whose end our log does not contain."""
        assert meta.index > self.commit, f"snapshot {meta.index} is not beyond the commit index {self.commit}"
        assert self._writing_last == 0, "a batch is still being written"
        self._restored = meta
        self._snapshot_due = True
        self._unstable.clear()
        self._truncate_from = None
        self.stable_last = self.commit = self.applied = self.handed_out = meta.index
        self._applying.clear()
        self._applying_bytes = 0
        self.memberships.note_restored(meta.index, meta.members)

    def take_snapshot(self) -> SnapshotMeta | None:
        """Return the snapshot that the next batch has to begin with, if any."""
        is_due, self._snapshot_due = self._snapshot_due, False
        return self._restored if is_due else None

    def take_batch(self) -> tuple[int | None, list[Entry]]:
        """Return the index to truncate at, and the entries to append, for the next write."""
        assert self._writing_last == 0, "the batch before is still being written"
        truncate_from, self._truncate_from = self._truncate_from, None
        self._writing_last = self.last_index if self._unstable else 0
        return truncate_from, list(self._unstable)

    def batch_written(self) -> None:
        """Note that the batch of the last `take_batch` is on disk.

        Entries overwritten meanwhile do not count.
        """
        written, self._writing_last = self._writing_last, 0
        if not self._snapshot_due:
            self._restored = None  # it is on disk now
        if self._truncate_from is not None:
            written = min(written, self._truncate_from - 1)
        if written > self.stable_last:
            del self._unstable[: written - self.stable_last]
            self.stable_last = written

    def may_hand_out(self, applying_bytes_max: int) -> bool:
        """Return True if there are committed entries to apply, and few enough are being applied."""
        return self.handed_out < self.commit and self._applying_bytes < applying_bytes_max

    def take_committed(self, max_bytes: int) -> list[Entry]:
        """Return the next committed entries to apply, at least one."""
        entries = self.entries(self.handed_out + 1, self.commit + 1, max_bytes)
        self.handed_out = entries[-1].index
        size_bytes = sum(map(entry_size_bytes, entries))
        self._applying.append((self.handed_out, size_bytes))
        self._applying_bytes += size_bytes
        return entries

    def applied_to(self, index: int) -> None:
        """Note that all entries up to `index` are applied; ignored if a snapshot is newer."""
        assert index <= self.handed_out, f"applied {index}, but only {self.handed_out} was handed out"
        self.applied = max(self.applied, index)
        while self._applying and self._applying[0][0] <= index:
            self._applying_bytes -= self._applying.popleft()[1]
