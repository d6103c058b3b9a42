"""When a member applies what is committed: at once where somebody waits, a moment later elsewhere."""

import asyncio
from pathlib import Path

import pytest

from coordinator.member import applying
from tests.unit.coordinator.member.test_driver_group import DEADLINE_S, Group, admit, leading, let_in


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


async def test_follower_applies_later_what_nobody_waits_for_and_at_once_what_a_read_does(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "APPLIED_AFTER_S", 2 * DEADLINE_S)
    first, second = group.seat("c1"), group.seat("c2")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader, second.run() as follower:
        await leading(leader)
        await let_in(leader, "c1", learners=("c2",))
        for number in range(5):
            await leader.propose(admit(f"user-{number}"))
        while follower.status().commit < leader.status().commit:
            await asyncio.sleep(0.01)
        assert follower.applied_index < leader.applied_index
        await follower.read_barrier()
        assert follower.applied_index >= leader.applied_index
        assert second.store.token_generation("user-4") is not None


async def test_member_that_comes_to_lead_applies_what_it_has_put_off(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "APPLIED_AFTER_S", 2 * DEADLINE_S)
    first, second = group.seat("c1"), group.seat("c2")
    async with asyncio.timeout(DEADLINE_S), first.run() as leader, second.run() as other:
        await leading(leader)
        await let_in(leader, "c1", learners=("c2",))
        await let_in(leader, "c1", "c2")
        await leader.propose(admit("alice"))
        leader.transfer_leader("c2")
        while not other.is_leader:
            await asyncio.sleep(0.01)
        await other.propose(admit("bob"))
        assert second.store.token_generation("alice") is not None
