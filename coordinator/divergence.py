"""Whose state is the odd one: compares the digests that members report for the same place in the log.

No I/O here. What is reported comes from the log, so every member sees the same reports and comes to the same
finding; the odd one finds itself, and stops.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

# Places in the log whose digests are remembered. One that was away finds that it differs where it was left
# behind: its report comes as many places late as were hashed meanwhile. About 600 bytes each.
INDEXES_MAX = 1024
REPORTERS_MAX = 64  # digests remembered for one place: more than a group has members


@dataclass(frozen=True, slots=True)
class Divergence:
    """Members that applied the same log up to `log_index` differ.

    `odd`: those whose digest is not that of a majority of the voters, sorted; empty as long as no digest has
    a majority: then all that is known is that somebody is wrong.
    """

    log_index: int
    odd: tuple[str, ...]


@dataclass(slots=True)
class _Place:
    digests: dict[str, str] = field(default_factory=dict)  # by coordinator
    found: Divergence | None = None


class DivergenceWatch:
    """Remembers what was reported, for a bounded number of places in the log."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._places: dict[int, _Place] = {}

    def own(self, log_index: int, digest: str) -> None:
        """This member's own digest, as the state machine replied it; known before any report about it."""
        self._remember(log_index, self._own_id, digest)

    def own_digest(self, log_index: int) -> str:
        """What `own` was told of this place, "" if that was forgotten."""
        place = self._places.get(log_index)
        return place.digests.get(self._own_id, "") if place is not None else ""

    def reported(
        self, coordinator_id: str, log_index: int, digest: str, voters: Collection[str]
    ) -> Divergence | None:
        """A report from the log. What it shows that was not known before: a difference, or who is odd.

        `coordinator_id` need not be a voter: a learner can be odd, but only voters make a majority. This
        member is held to the digest that it computed itself, if it remembers that.
        """
        place = self._places.get(log_index)
        if coordinator_id != self._own_id or place is None or self._own_id not in place.digests:
            self._remember(log_index, coordinator_id, digest)
        place = self._places.get(log_index)
        found = None if place is None else _compare(log_index, place.digests, voters)
        if place is None or found is None or found == place.found:
            return None
        place.found = found
        return found

    def _remember(self, log_index: int, coordinator_id: str, digest: str) -> None:
        place = self._places.setdefault(log_index, _Place())
        if coordinator_id in place.digests or len(place.digests) < REPORTERS_MAX:
            place.digests[coordinator_id] = digest
        while len(self._places) > INDEXES_MAX:
            del self._places[min(self._places)]


def _compare(log_index: int, digests: dict[str, str], voters: Collection[str]) -> Divergence | None:
    if len(set(digests.values())) < 2:
        return None
    counts: dict[str, int] = {}
    for voter in sorted(set(voters)):
        if voter in digests:
            counts[digests[voter]] = counts.get(digests[voter], 0) + 1
    right = [digest for digest, count in counts.items() if 2 * count > len(set(voters))]
    odd = [member for member, digest in digests.items() if right and digest != right[0]]
    return Divergence(log_index, tuple(sorted(odd)))
