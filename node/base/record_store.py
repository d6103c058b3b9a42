"""The file records that this process caches, and their expiry. No I/O here; time is passed in.

coordinator/member/record_leases.py explains how cached records stay valid. The node's part of it is:

- Cached records are used only within the lease, which counts from the time when its call was sent.
- A record is dropped before its block is acknowledged, and not cached again while it is blocked.
- A record is cached only if its read began within this lease and none of its keys was blocked since. An
  earlier read may have found the state before the command that caused the block.
- The end of the lease, and another term, drop everything, reads in progress included: this process may have
  missed blocks that began and ended in between.
"""

from collections import OrderedDict

from metadata.model.records import Caller, ContentRecord
from metadata.protocol.calls import FollowReply
from metadata.protocol.invalidation import EVERY_KEY, file_key, keys_of

RECORDS_MAX = 16_384  # of one process: about 20 MiB
READS_MAX = 1024  # in progress, whose results may be cached

_Id = tuple[str, int, str, str]  # user, generation, session, file


class PendingRead:
    """A read in progress whose result may be cached. `blocked`: every key that was blocked since it began."""

    __slots__ = ("blocked",)

    def __init__(self, blocked: frozenset[str]) -> None:
        self.blocked = blocked


class CachedRecords:
    """Up to `records_max` records; the longest unused are dropped first."""

    def __init__(self, *, records_max: int = RECORDS_MAX) -> None:
        self.term = 0
        self.version = 0
        self._records_max = records_max
        self._ends_at_s = float("-inf")
        self._blocked: frozenset[str] = frozenset()
        self._records: OrderedDict[_Id, tuple[ContentRecord, tuple[str, ...]]] = OrderedDict()
        self._by_key: dict[str, set[_Id]] = {}
        self._readings: set[PendingRead] = set()

    def __len__(self) -> int:
        return len(self._records)

    def is_leased(self, *, now_s: float) -> bool:
        """Return whether any record may be answered from here now."""
        return now_s < self._ends_at_s

    def follow(self, reply: FollowReply, *, sent_at_s: float, now_s: float) -> None:
        """Apply the leader's reply to a call that was sent then; replies come in the order of their calls."""
        if reply.term != self.term or not self.is_leased(now_s=now_s):
            self.forget_all()
        self.term, self.version = reply.term, reply.version
        blocked = frozenset(reply.blocked)
        for key in blocked - self._blocked:
            self._drop(key)
        self._blocked = blocked
        if blocked:
            for reading in self._readings:
                reading.blocked |= blocked
        self._ends_at_s = max(self._ends_at_s, sent_at_s + reply.lease_s)

    def get(self, caller: Caller, file_uuid: str, *, now_s: float) -> ContentRecord | None:
        """Return the current record for this caller, whose token was verified; None if it is not cached."""
        place = (caller.subject, caller.generation, caller.session, file_uuid)
        known = self._records.get(place)
        if known is None or now_s >= self._ends_at_s:
            return None
        self._records.move_to_end(place)
        return known[0]

    def begin(self, *, now_s: float) -> PendingRead | None:
        """Begin a read whose result may be cached; return None if it may not. `end` it in any case."""
        if not self.is_leased(now_s=now_s) or len(self._readings) >= READS_MAX or EVERY_KEY in self._blocked:
            return None
        reading = PendingRead(self._blocked)
        self._readings.add(reading)
        return reading

    def end(self, reading: PendingRead) -> None:
        """End a read."""
        self._readings.discard(reading)

    def keep(self, reading: PendingRead, caller: Caller, record: ContentRecord, *, now_s: float) -> bool:
        """Cache the result of a read, if that is allowed; return whether it is."""
        keys = keys_of(caller, record.file)
        is_free = reading in self._readings and reading.blocked.isdisjoint(keys)
        if not (is_free and record.is_lasting and self.is_leased(now_s=now_s)):
            return False
        known = (caller.subject, caller.generation, caller.session, record.file.file_uuid)
        self._remove(known)
        if len(self._records) >= self._records_max:
            self._remove(next(iter(self._records)))
        self._records[known] = record, keys
        for key in keys:
            self._by_key.setdefault(key, set()).add(known)
        return True

    def forget(self, file_uuid: str) -> None:
        """Drop the records of a file whose replicas were not where they say."""
        key = file_key(file_uuid)
        self._drop(key)
        for reading in self._readings:
            reading.blocked |= {key}

    def forget_all(self) -> None:
        """Drop everything, including the lease and reads in progress."""
        self._ends_at_s = float("-inf")
        self._records.clear()
        self._by_key.clear()
        self._readings.clear()
        self._blocked = frozenset()

    def _drop(self, key: str) -> None:
        for known in list(self._by_key.get(key, ())):
            self._remove(known)

    def _remove(self, known: _Id) -> None:
        removed = self._records.pop(known, None)
        if removed is None:
            return
        for key in removed[1]:
            others = self._by_key[key]
            others.discard(known)
            if not others:
                del self._by_key[key]
