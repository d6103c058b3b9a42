"""Decide whether a leader's disk is too slow to lead. No I/O here; time is passed in.

A leader writes to its own disk and sends the same entries to the others at the same moment. For one batch at
a time, two times are measured: until it is on this disk, and until it is on enough other disks that this one
is not needed. Both are measured with one clock, and a delay of the whole process affects both.

A transfer causes a pause too, so it must be worth it, and must not repeat endlessly: a majority of the others
must be faster by a factor, several times in a row. A new leader also leads for a minimum time, which is
longer the more often the lead has changed recently.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

LATE_S: Final = 0.25  # a batch that is on our own disk sooner is in time; a good disk needs 1 to 30 ms
LATE_FACTOR: Final = 4.0  # times what the others need: two disks of one make differ by less
LATE_BATCHES: Final = 3  # in a row
HANGING_S: Final = LATE_S * LATE_BATCHES  # one batch that takes this long suffices
LEAD_S_MIN: Final = 10.0  # from the beginning of a lead to a transfer because of its pace
CALM_S: Final = 600.0  # each change of leaders within this time doubles it
CHANGES_MAX: Final = 7  # of those that count: then a lead lasts for ten minutes


@dataclass(slots=True)
class _Batch:
    index: int  # of its last entry
    began_at_s: float
    own_s: float | None = None  # until it was on our disk
    others_s: float | None = None  # until a majority had it without us


class Pace:
    """The pace of one member's disk, while the member runs."""

    def __init__(self) -> None:
        self._term = -1  # none was seen
        self._leads = False
        self._changes: deque[float] = deque(maxlen=CHANGES_MAX + 1)  # when each of the last terms began
        self._rests_until_s = float("-inf")
        self._batch: _Batch | None = None
        self._late = 0  # batches in a row

    @property
    def is_measuring(self) -> bool:
        """Return whether it waits for the times of the others."""
        return self._batch is not None and self._batch.others_s is None

    def note_term(self, term: int, *, leads: bool, at_s: float) -> None:
        """Note at each tick the term of this member, and whether it leads."""
        if (term, leads) == (self._term, self._leads):
            return
        if self._term not in (-1, term):
            self._changes.append(at_s)
        self._term, self._leads = term, leads
        self._batch, self._late = None, 0
        if leads:
            self._rest(at_s)

    def _rest(self, at_s: float) -> None:
        changes = sum(at_s - changed_at_s < CALM_S for changed_at_s in self._changes)
        self._rests_until_s = at_s + LEAD_S_MIN * 2 ** max(0, changes - 1)

    def note_sent(self, index: int, *, at_s: float) -> None:
        """Note that entries up to `index` are being sent to our disk and to the others from now on."""
        if self._batch is None:
            self._batch = _Batch(index, at_s)

    def note_durable_elsewhere(self, index: int, *, at_s: float) -> None:
        """Note that a majority without this member has the log up to `index` on disk."""
        batch = self._batch
        if batch is not None and batch.others_s is None and index >= batch.index:
            batch.others_s = at_s - batch.began_at_s
            self._judge(batch)

    def note_durable_here(self, index: int, *, at_s: float) -> None:
        """Note that our disk has the log up to `index`. Others that do not have it by then are no faster."""
        batch = self._batch
        if batch is not None and index >= batch.index:
            batch.own_s = at_s - batch.began_at_s
            self._judge(batch)

    def _judge(self, batch: _Batch) -> None:
        if batch.own_s is None:
            return
        self._late = self._late + 1 if _is_late(batch, batch.own_s, LATE_S) else 0
        self._batch = None

    def is_too_slow(self, *, at_s: float) -> bool:
        """Return whether another member should lead now."""
        if at_s < self._rests_until_s:
            return False
        batch = self._batch
        hangs = batch is not None and _is_late(batch, at_s - batch.began_at_s, HANGING_S)
        return hangs or self._late >= LATE_BATCHES

    def note_transfer(self, *, at_s: float) -> None:
        """Note that another was asked to lead: if it does not, it is asked again after a while."""
        self._late = 0
        self._rest(at_s)


def _is_late(batch: _Batch, own_s: float, late_s: float) -> bool:
    return batch.others_s is not None and own_s >= max(late_s, LATE_FACTOR * batch.others_s)
