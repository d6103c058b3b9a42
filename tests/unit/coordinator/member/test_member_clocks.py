"""What a coordinator takes for the time, by the clocks that it hears."""

from collections.abc import Callable

import pytest

from ca.identity import Identity, Role
from coordinator.member.member_clocks import CLOCK_AGE_MAX_S, MemberClocks

HOUR_MS = 3_600_000
NODES = tuple(Identity("lab", Role.NODE, name) for name in ("n1", "n2", "n3"))
COORDINATORS = tuple(Identity("lab", Role.COORDINATOR, name) for name in ("c2", "c3"))


class Machine:
    """With a wall clock that can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall_ms, self.steady_s = 1_000_000_000, 50.0
        self.clocks = MemberClocks(wall_ms=lambda: self.wall_ms, steady_s=lambda: self.steady_s)

    def wait(self, seconds: float) -> None:
        self.steady_s += seconds
        self.wall_ms += int(seconds * 1000)

    def receive(self, *members: Identity, offset_ms: int = 0) -> None:
        for member in members:
            self.clocks.receive(member, self.wall_ms + offset_ms)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_nobody_heard_means_our_own_time(machine: Machine) -> None:
    assert machine.clocks.now_ms() == machine.wall_ms


@pytest.mark.parametrize("offset_ms", [HOUR_MS, -HOUR_MS])
def test_time_is_what_most_clocks_show(machine: Machine, offset_ms: int) -> None:
    machine.receive(*NODES[:2], offset_ms=offset_ms)
    assert machine.clocks.now_ms() == machine.wall_ms + offset_ms
    machine.wait(5)
    assert machine.clocks.now_ms() == machine.wall_ms + offset_ms


def test_clock_that_is_set_is_known_to_be_wrong_or_right_before_anybody_is_heard_again(
    machine: Machine,
) -> None:
    machine.receive(*NODES)
    right_ms = machine.wall_ms
    machine.wall_ms += 13 * HOUR_MS
    assert machine.clocks.now_ms() == right_ms
    machine.wall_ms = right_ms
    assert (machine.clocks.now_ms(), machine.clocks.correction_ms()) == (right_ms, 0)


def test_coordinators_count_where_there_are_too_few_nodes_to_tell(machine: Machine) -> None:
    machine.receive(*COORDINATORS, offset_ms=HOUR_MS)
    machine.receive(NODES[0], offset_ms=HOUR_MS)
    assert machine.clocks.now_ms() == machine.wall_ms + HOUR_MS
    machine.receive(*NODES)
    assert machine.clocks.now_ms() == machine.wall_ms


def test_coordinators_count_no_more_where_there_are_nodes_enough(machine: Machine) -> None:
    """All coordinators hear the same nodes, and so come to the same time, whoever of them is heard."""
    machine.receive(*COORDINATORS)
    machine.receive(*NODES[:2], offset_ms=HOUR_MS)
    assert machine.clocks.now_ms() == machine.wall_ms + HOUR_MS


@pytest.mark.parametrize("offset_ms", [HOUR_MS, -HOUR_MS])
def test_node_of_our_own_machine_does_not_save_a_wrong_clock_from_the_coordinators(
    machine: Machine, offset_ms: int
) -> None:
    machine.receive(NODES[0])  # as wrong as ours
    machine.receive(*NODES[1:], *COORDINATORS, offset_ms=offset_ms)
    assert machine.clocks.now_ms() == machine.wall_ms + offset_ms


def test_node_of_our_own_machine_and_we_are_right_against_another_machine(machine: Machine) -> None:
    machine.receive(*NODES[:2], COORDINATORS[0])
    machine.receive(NODES[2], COORDINATORS[1], offset_ms=HOUR_MS)
    assert machine.clocks.correction_ms() == 0


def test_of_two_clocks_none_is_called_wrong(machine: Machine) -> None:
    machine.receive(NODES[0], offset_ms=HOUR_MS)
    assert machine.clocks.now_ms() == machine.wall_ms


def test_clock_that_was_not_heard_for_long_counts_no_more(machine: Machine) -> None:
    machine.receive(*NODES, offset_ms=HOUR_MS)
    machine.wait(CLOCK_AGE_MAX_S + 1)
    assert machine.clocks.now_ms() == machine.wall_ms


def test_older_members_that_tell_no_time_are_passed_over(machine: Machine) -> None:
    for node in NODES:
        machine.clocks.receive(node, 0)
    assert machine.clocks.offsets_ms() == []


def test_nothing_ends_by_a_time_in_doubt_that_was_not_over_by_both(machine: Machine) -> None:
    machine.receive(*NODES, offset_ms=HOUR_MS)
    assert machine.clocks.ending_ms() == machine.wall_ms
    machine.receive(*NODES, offset_ms=-HOUR_MS)
    assert machine.clocks.ending_ms() == machine.wall_ms - HOUR_MS


def test_one_look_is_no_reason_to_hand_over(machine: Machine) -> None:
    def looks(set_right: Callable[[], None] | None = None) -> bool:
        if set_right is not None:
            set_right()
        return machine.clocks.look()

    machine.receive(*NODES, offset_ms=HOUR_MS)
    assert not looks()
    assert not looks(lambda: machine.receive(*NODES))
    assert not looks(lambda: machine.receive(*NODES, offset_ms=HOUR_MS))
    assert looks()
    assert not looks(lambda: machine.receive(*NODES))
