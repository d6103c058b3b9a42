"""The newest entries of a log in memory, within a bound of bytes. Apart from `raft_log`: no I/O, no lock.

Followers that keep up cost no disk read. No I/O and no lock here: `coordinator.storage.raft_log` guards it.

Tested by tests/unit/coordinator/storage/test_raft_log.py.
"""

from collections.abc import Sequence

from coordinator.raft.messages import Entry, entry_size_bytes


class EntryCache:
    """Entries without a gap, up to the last of the log; none if even the last one is too large."""

    def __init__(self, size_bytes_max: int) -> None:
        self.first = 1  # the lowest cached index; one beyond the log's end if there is none
        self._entries: dict[int, Entry] = {}
        self._size_bytes = 0
        self._size_bytes_max = size_bytes_max

    def clear(self, following: int) -> None:
        """Drop everything; the next entry added will be `following`."""
        self._entries.clear()
        self._size_bytes = 0
        self.first = following

    def add(self, entries: Sequence[Entry]) -> None:
        """Add the next entries, and drop the oldest if there are too many bytes."""
        cached = self._entries
        size_bytes = self._size_bytes
        for entry in entries:
            cached[entry.index] = entry
            size_bytes += entry_size_bytes(entry)
        while size_bytes > self._size_bytes_max:
            size_bytes -= entry_size_bytes(cached.pop(self.first))
            self.first += 1
        self._size_bytes = size_bytes

    def truncate(self, index: int, last: int) -> None:
        """Drop the entries from `index` to `last`, the end of the log."""
        for void in range(max(index, self.first), last + 1):
            self._size_bytes -= entry_size_bytes(self._entries.pop(void))
        self.first = min(self.first, index)

    def entries(self, low: int, high: int, size_bytes_max: int) -> list[Entry]:
        """Return entries from `low`, which must be cached, to before `high`: at least one."""
        found: list[Entry] = []
        for index in range(low, high):
            entry = self._entries[index]
            size_bytes_max -= entry_size_bytes(entry)
            if size_bytes_max < 0 and found:
                break
            found.append(entry)
        return found
