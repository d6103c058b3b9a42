"""Choose nodes for new replicas: weighted rendezvous hashing over suitable nodes, zones first. Pure.

Source: Thaler and Ravishankar 1998 (highest random weight); the weighted score -w / ln(h) is Mosko's form
of it.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import xxhash

RESERVE_SHARE = 0.05  # of a disk stays free for deletes, repair and the log
# In reserves: with less room beyond those of all disks, the trash shrinks; the status warns before that.
PRESSED_RESERVES = 0.5
WARNED_RESERVES = 1.0
RESERVE_BYTES_MAX = 10 << 30  # a large disk need not keep more than this free


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that is alive now. `weight` is positive; `zone` "" is a zone of its own for each node."""

    node_id: str
    zone: str
    weight: int
    free_bytes: int
    total_bytes: int

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more leave the reserve untouched."""
        return self.free_bytes - size_bytes >= self.reserve_bytes

    def can_repair(self, size_bytes: int) -> bool:
        """Whether `size_bytes` more leave half of the reserve, which is for what a disk must do in any case.

        A blob with too few replicas is worse than a disk with little room.
        """
        return self.free_bytes - size_bytes >= self.reserve_bytes // 2

    @property
    def reserve_bytes(self) -> int:
        """Return the space that is reserved for deletes, repair and the log."""
        return min(int(self.total_bytes * RESERVE_SHARE), RESERVE_BYTES_MAX)


def room_bytes(candidates: Sequence[Candidate]) -> int:
    """Return the free bytes of all disks beyond their reserves."""
    return sum(max(each.free_bytes - each.reserve_bytes, 0) for each in candidates)


def lacking_bytes(candidates: Sequence[Candidate], reserves: float) -> int:
    """Return the bytes that the disks lack to have `reserves` times their reserves free beyond them."""
    return max(int(reserves * sum(each.reserve_bytes for each in candidates)) - room_bytes(candidates), 0)


def choose(
    key: str, candidates: Sequence[Candidate], count: int, *, taken_zones: Collection[str] = ()
) -> list[str]:
    """Up to `count` node ids for `key`, best first; one of each zone while zones last. Deterministic.

    `taken_zones`, as `zone_of` names them, hold replicas already: they come after the others.
    """
    ranked = sorted(candidates, key=lambda candidate: (-_score(key, candidate), candidate.node_id))
    chosen: list[Candidate] = []
    zones = set(taken_zones)
    for candidate in ranked:
        zone = zone_of(candidate.node_id, candidate.zone)
        if zone not in zones:
            zones.add(zone)
            chosen.append(candidate)
    chosen += [candidate for candidate in ranked if candidate not in chosen]
    return [candidate.node_id for candidate in chosen[:count]]


def holder_first(chosen: Sequence[str], wished: Sequence[str], proposer_id: str) -> list[str]:
    """Move the proposer to the front if it asked to be chosen, and was chosen.

    It has the bytes at hand. Which nodes get them is still decided by `choose`, and so is the balance between
    disks.
    """
    first = proposer_id if list(wished) == [proposer_id] else ""
    return sorted(chosen, key=lambda node_id: node_id != first)


def zone_of(node_id: str, zone: str) -> str:
    """The zone of a node; its own where none is named."""
    return zone or f"node {node_id}"


def _score(key: str, candidate: Candidate) -> float:
    digest = xxhash.xxh3_64_intdigest(f"{key}/{candidate.node_id}".encode())
    uniform = (digest + 1) / (2**64 + 1)  # within (0, 1)
    return -candidate.weight / math.log(uniform)
