"""Who should lead: not one whose clock or state is wrong while another can. To whom a leader hands over."""

import asyncio
from pathlib import Path

import pytest

from ca.identity import Identity, Role
from coordinator.member import driver as driver_module
from coordinator.member.driver import Driver
from coordinator.member.succession import ready_successor, successor, why_not
from coordinator.raft.core import MemberProgress, RaftRole, Status
from coordinator.raft.messages import Members, Reluctance
from coordinator.raft.progress import ProgressState
from runtime.clock import now_ms
from tests.unit.coordinator.member.test_driver_group import Group, admit, three_voters
from tests.unit.state import HOUR_MS

DEADLINE_S = 30.0
REPLICATE, PROBE, SNAPSHOT = ProgressState.REPLICATE, ProgressState.PROBE, ProgressState.SNAPSHOT
RELUCTANT = [each for each in Reluctance if each > Reluctance.WILLING]

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members look at themselves every 160 ms."""
    monkeypatch.setattr(driver_module, "TIDY_TICKS", 2)


def nodes_show(driver: Driver, offset_ms: int) -> None:
    for name in ("n1", "n2"):
        driver._clocks.receive(Identity("lab", Role.NODE, name), now_ms() + offset_ms)


async def led_by_another(group: Group, but: str) -> Driver:
    while True:
        for driver in group.drivers.values():
            if driver.is_leader and driver.id != but:
                return driver
        await asyncio.sleep(0.01)


async def test_leader_whose_clock_is_wrong_hands_over_to_one_whose_clock_is_right(tmp_path: Path) -> None:
    group = Group(tmp_path)
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run() as second, seats[2].run():
        await three_voters(first)
        nodes_show(second, HOUR_MS)
        while first.status().progress["c2"].reluctance is not Reluctance.CLOCK_WRONG:
            await asyncio.sleep(0.01)
        nodes_show(first, -HOUR_MS)
        leader = await led_by_another(group, "c1")
        assert leader.id == "c3", "the clock of c2 is wrong as well"
        assert first.is_clock_wrong
        assert await leader.propose(admit("after"))


async def test_lead_stays_where_no_other_is_fitter(tmp_path: Path) -> None:
    """Else it would go round for as long as all clocks are wrong."""
    group = Group(tmp_path)
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run() as second, seats[2].run():
        await three_voters(first)
        for driver in (second, group.drivers["c3"]):
            nodes_show(driver, HOUR_MS)
        while {first.status().progress[each].reluctance for each in ("c2", "c3")} != {Reluctance.CLOCK_WRONG}:
            await asyncio.sleep(0.01)
        nodes_show(first, HOUR_MS)
        while not first.is_clock_wrong:
            await asyncio.sleep(0.01)
        term, looked = first.status().term, first.ticks
        while first.ticks < looked + 5 * driver_module.TIDY_TICKS:
            await asyncio.sleep(0.01)
        assert (first.is_leader, first.status().term) == (True, term)


async def test_leader_whose_state_is_wrong_hands_over_and_leads_again_only_if_no_other_can(
    tmp_path: Path,
) -> None:
    group = Group(tmp_path)
    seats = [group.seat(name) for name in ("c1", "c2", "c3")]
    async with asyncio.timeout(DEADLINE_S), seats[0].run() as first, seats[1].run() as second:
        async with seats[2].run():
            await three_voters(first)
            first.suspect()
            leader = await led_by_another(group, "c1")
            assert await leader.propose(admit("after"))
            while leader.status().progress["c1"].reluctance is not Reluctance.STATE_WRONG:
                await asyncio.sleep(0.01)
            leader.transfer_leader()
            leader = await led_by_another(group, leader.id)
            assert leader.id != "c1"
        leader = await led_by_another(group, "c1")  # of two, both are needed; one is sound
        assert leader is second


def progress(
    match: int = 9,
    state: ProgressState = REPLICATE,
    reluctance: Reluctance = Reluctance.WILLING,
    *,
    active: bool = True,
) -> MemberProgress:
    return MemberProgress(match, match + 1, state, 0, 0, active, 0, reluctance)


def led_by_a(learners: tuple[str, ...] = (), **others: MemberProgress) -> Status:
    voters = ("a", *(name for name in others if name not in learners))
    return Status(
        "a",
        1,
        RaftRole.LEADER,
        "a",
        commit=9,
        applied=9,
        last_index=9,
        first_index=1,
        members=Members(voters, learners),
        messages_refused=0,
        recovering=False,
        progress={"a": progress(), **others},
    )


ANY = max(Reluctance)


def test_lead_goes_to_the_most_advanced_of_those_that_are_alike() -> None:
    assert successor(led_by_a(b=progress(8), c=progress(9)), reluctance_max=ANY) == "c"
    assert ready_successor(led_by_a(b=progress(8), c=progress(9)), reluctance_max=ANY) == "c"


def test_lead_goes_to_none_that_is_silent_or_has_no_vote() -> None:
    status = led_by_a(("c",), b=progress(active=False), c=progress())
    assert successor(status, reluctance_max=ANY) == ""


@pytest.mark.parametrize("reluctance", RELUCTANT)
def test_willing_one_goes_before_a_reluctant_one_that_is_ahead(reluctance: Reluctance) -> None:
    status = led_by_a(b=progress(9, reluctance=reluctance), c=progress(8))
    assert successor(status, reluctance_max=ANY) == "c"


@pytest.mark.parametrize("state", [PROBE, SNAPSHOT])
def test_one_that_keeps_up_goes_before_a_willing_one_that_does_not(state: ProgressState) -> None:
    status = led_by_a(b=progress(reluctance=Reluctance.NO_ROOM), c=progress(1, state))
    assert successor(status, reluctance_max=ANY) == "b"
    behind = led_by_a(c=progress(1, state))
    assert successor(behind, reluctance_max=ANY) == "c"
    assert ready_successor(behind, reluctance_max=ANY) == ""


@pytest.mark.parametrize("most", [each for each in Reluctance if each < ANY])
def test_lead_is_not_handed_to_a_more_reluctant_one(most: Reluctance) -> None:
    for reluctance in Reluctance:
        status = led_by_a(b=progress(reluctance=reluctance))
        assert successor(status, reluctance_max=most) == ("b" if reluctance <= most else "")
        assert bool(why_not(status, "b", reluctance=most)) == (reluctance > most)


def test_one_that_has_forgotten_its_promises_gets_the_lead_from_nobody() -> None:
    status = led_by_a(b=progress(reluctance=Reluctance.RECOVERING))
    assert successor(status, reluctance_max=ANY) == ""
    assert ready_successor(status, reluctance_max=ANY) == ""
    assert "has lost the end of its log" in why_not(status, "b", reluctance=Reluctance.STATE_WRONG)
