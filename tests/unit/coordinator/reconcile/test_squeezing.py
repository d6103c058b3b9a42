"""How much leaves the trash when disks are almost full."""

import msgspec
import pytest

from coordinator.reconcile.facts import Facts
from coordinator.reconcile.quotas import squeezed_bytes
from metadata.model.placement import Candidate
from metadata.model.records import NodeRecord
from tests.unit.node_records import node_record


def facts(*free_bytes: int, replicas: int = 3, unheard: tuple[NodeRecord, ...] = ()) -> Facts:
    """Disks of 1,000 bytes, of which 50 are the reserve."""
    disks = tuple(Candidate(f"n{n}", "", 1, free, 1000) for n, free in enumerate(free_bytes))
    nodes = (*(node_record(disk.node_id) for disk in disks), *unheard)
    reachable = frozenset(disk.node_id for disk in disks)
    return Facts(nodes=nodes, candidates=disks, reachable=reachable, replicas=replicas, write_quorum=2)


@pytest.mark.parametrize(
    ("free_bytes", "replicas", "pending", "squeezed"),
    [
        ((75, 75, 75), 3, 0, 0),  # each has its reserve, and half as much again
        ((72, 75, 75), 3, 0, 1),
        ((60, 60, 60), 3, 0, 15),
        ((60, 60, 60), 3, 10, 5),  # so much is about to leave the disks
        ((60, 60, 60), 3, 15, 0),
        ((60, 60, 60), 1, 0, 45),
        ((10, 200, 200), 3, 0, 0),  # one disk alone: others have room
        ((10, 10, 10), 3, 0, 25),
        ((60,), 3, 0, 15),
        ((), 3, 0, 0),
    ],
)
def test_as_much_goes_as_the_disks_lack(
    free_bytes: tuple[int, ...], replicas: int, pending: int, squeezed: int
) -> None:
    assert squeezed_bytes(facts(*free_bytes, replicas=replicas), pending) == squeezed


def test_nothing_goes_while_a_node_has_not_told_its_room() -> None:
    silent = node_record("silent")
    assert squeezed_bytes(facts(60, 60, unheard=(silent,)), 0) == 0
    down = msgspec.structs.replace(silent, state="down")
    assert squeezed_bytes(facts(60, 60, unheard=(down,)), 0) == 15
