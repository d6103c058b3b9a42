"""How much leaves the trash when disks are almost full."""

import pytest

from coordinator.reconcile.facts import Facts
from coordinator.reconcile.quotas import squeezed_bytes
from metadata.model.placement import Candidate


def facts(*free_bytes: int, replicas: int = 3) -> Facts:
    """Disks of 1,000 bytes, of which 50 are the reserve."""
    disks = tuple(Candidate(f"n{n}", "", 1, free, 1000) for n, free in enumerate(free_bytes))
    return Facts(nodes=(), candidates=disks, reachable=frozenset(), replicas=replicas, write_quorum=2)


@pytest.mark.parametrize(
    ("free_bytes", "replicas", "pending", "squeezed"),
    [
        ((100, 100, 100), 3, 0, 0),  # each has its reserve, and as much again
        ((97, 100, 100), 3, 0, 1),
        ((70, 70, 70), 3, 0, 30),
        ((70, 70, 70), 3, 10, 20),  # so much is about to leave the disks
        ((70, 70, 70), 3, 30, 0),
        ((70, 70, 70), 1, 0, 90),
        ((10, 200, 200), 3, 0, 0),  # one disk alone: others have room
        ((10, 10, 10), 3, 0, 50),
        ((70,), 3, 0, 30),
        ((), 3, 0, 0),
    ],
)
def test_as_much_goes_as_the_disks_lack(
    free_bytes: tuple[int, ...], replicas: int, pending: int, squeezed: int
) -> None:
    assert squeezed_bytes(facts(*free_bytes, replicas=replicas), pending) == squeezed
