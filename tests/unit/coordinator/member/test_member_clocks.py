"""What a coordinator takes for the time, by the clocks that it hears."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from ca.identity import Identity, Role
from coordinator.member import member_clocks
from coordinator.member.member_clocks import CLOCK_AGE_MAX_S, MemberClocks
from runtime.kept_time import read_saved

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


@pytest.mark.parametrize("jump_ms", [72 * HOUR_MS, -72 * HOUR_MS])
def test_jump_of_all_clocks_ends_nothing_and_dates_nothing_back(machine: Machine, jump_ms: int) -> None:
    machine.receive(*NODES)
    machine.wait(100)
    before_ms = machine.clocks.now_ms()
    machine.wall_ms += jump_ms
    machine.receive(*NODES)
    after_ms = before_ms + jump_ms
    assert machine.clocks.shown_ms() == after_ms
    assert machine.clocks.now_ms() == max(before_ms, after_ms)
    assert machine.clocks.ending_ms() == min(before_ms, after_ms)
    assert (machine.clocks.kept_ms(), machine.clocks.jump_ms()) == (before_ms, jump_ms)


def test_time_of_the_leader_is_kept_and_that_of_an_older_version_is_none(machine: Machine) -> None:
    kept_ms = machine.wall_ms - 72 * HOUR_MS
    machine.clocks.follow(0)
    assert machine.clocks.ending_ms() == machine.wall_ms
    machine.clocks.follow(kept_ms)
    assert machine.clocks.ending_ms() == kept_ms


async def test_next_process_goes_on_with_the_time_that_is_kept(machine: Machine, tmp_path: Path) -> None:
    path, before_ms = tmp_path / "time.json", machine.wall_ms
    saving = asyncio.create_task(machine.clocks.keep_saved(path, "c1"))
    async with asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)
    saving.cancel()
    machine.wall_ms += 72 * HOUR_MS
    saved = read_saved(path, "c1")
    clocks = MemberClocks(wall_ms=lambda: machine.wall_ms, steady_s=lambda: 7.0, saved=saved)
    assert (clocks.ending_ms(), clocks.now_ms()) == (before_ms, machine.wall_ms)


async def test_disk_that_does_not_take_the_time_is_told_once(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(member_clocks, "SAVE_S", 0.0)
    directory = tmp_path / "late"
    saving = asyncio.create_task(machine.clocks.keep_saved(directory / "time.json", "c1"))
    async with asyncio.timeout(20):
        while not caplog.records:
            await asyncio.sleep(0.01)
        directory.mkdir()
        while not (directory / "time.json").exists():
            await asyncio.sleep(0.01)
    saving.cancel()
    assert [record.getMessage() for record in caplog.records] == ["time.json cannot be written"]
