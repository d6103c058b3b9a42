"""A node's custody through random lives: whatever happens in between, in the end disk and log agree.

The dice come from the seed in the test's id; nothing else is random but the clock that runs on.
"""

import asyncio
import random

import pytest

from node.storage.damage import miss, verify_blob
from tests.unit import replica_acts as acts
from tests.unit.custody_node import DAY_S, SIZE_BYTES, Keeper
from tests.unit.seeds import seeds
from tests.unit.state import Refusal

STEPS = 60
BLOBS_MAX = 40


class Storm:
    """What happens to one node. `wanted`: blobs of files that were never spoilt here, nor released."""

    def __init__(self, keeper: Keeper, seed: int) -> None:
        self.keeper = keeper
        self.dice = random.Random(seed)
        self.files: set[str] = set()
        self.wanted: set[str] = set()
        self.made = 0

    async def step(self) -> None:
        names = sorted(self.files)
        of_others = (
            self.store,
            self.store,
            self.stray,
            self.delete,
            self.spoil,
            self.set_aside,
            self.release,
        )
        its_own = (self.collect, self.compare, self.look, self.drop_orphans, self.all_at_once, self.restart)
        act = self.dice.choice((*of_others, self.affirm, self.retain, self.wait, self.lose_reports, *its_own))
        await act(self.dice.choice(names) if names else "")

    async def store(self, _name: str) -> None:
        if self.made < BLOBS_MAX:
            self.made += 1
            name = self.keeper.store()
            self.files.add(name)
            self.wanted.add(name)

    async def stray(self, _name: str) -> None:
        self.keeper.put(self.dice.randbytes(SIZE_BYTES))

    async def delete(self, name: str) -> None:
        if name:
            self.files.discard(name)
            self.wanted.discard(name)
            self.keeper.doom(name)

    async def spoil(self, name: str) -> None:
        if name and self.keeper.blobs.has_name(name):
            self.wanted.discard(name)
            if self.dice.random() < 0.5:
                self.keeper.lose(name)
                await miss(self.keeper.disk, self.keeper.blobs, name)
            else:
                self.keeper.cut(name, 2)

    async def set_aside(self, name: str) -> None:
        if name:
            self.keeper.context.quarantine.take(name)

    async def release(self, name: str) -> None:
        if name and not isinstance(acts.release(self.keeper.state, name, "n1"), Refusal):
            self.wanted.discard(name)

    async def affirm(self, name: str) -> None:
        if name:
            self.keeper.blobs.affirm(name)

    async def wait(self, _name: str) -> None:
        self.keeper.later_s += self.dice.choice((300.0, 700.0, DAY_S + 60.0, 8 * DAY_S))

    async def collect(self, _name: str) -> None:
        await self.keeper.collect(yes_really=True)

    async def compare(self, _name: str) -> None:
        await self.keeper.compare(yes_really=True)

    async def drop_orphans(self, _name: str) -> None:
        await self.keeper.custody.orphans.delete_orphans()

    async def look(self, _name: str) -> None:
        await self.keeper.look()

    async def retain(self, name: str) -> None:
        await self.keeper.custody.retain(name or "0" * 64)

    async def all_at_once(self, _name: str) -> None:
        """As the loops of custody do."""
        settle = self.keeper.custody.settle_losses
        async with asyncio.TaskGroup() as group:
            for work in (self.collect(""), self.compare(""), settle(), self.collect(""), self.retain("")):
                group.create_task(work)
                for _ in range(self.dice.randrange(20)):
                    await asyncio.sleep(0)

    async def restart(self, _name: str) -> None:
        """In the middle of something, as often as not."""
        working = asyncio.create_task(self.dice.choice((self.keeper.collect, self.keeper.compare))())
        for _ in range(self.dice.randrange(40)):
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.wait({working})
        _ = working.cancelled() or working.exception()
        await self.keeper.custody.close()
        self.keeper.restart()

    async def lose_reports(self, _name: str) -> None:
        self.keeper.log.lost_reports += self.dice.randrange(3)
        self.keeper.log.lost_answers += self.dice.randrange(3)


@pytest.mark.parametrize("seed", seeds(range(3), range(3, 30)))
async def test_disk_and_log_agree_in_the_end_and_nothing_wanted_is_gone(keeper: Keeper, seed: int) -> None:
    storm = Storm(keeper, seed)
    for _ in range(STEPS):
        await storm.step()
        assert storm.wanted <= {*keeper.on_disk(), *keeper.quarantined()}
    for _ in range(2):  # what the first round brings back may be unknown by now
        keeper.later_s += 8 * DAY_S
        acts.collect(keeper.state)  # what was spared waits for this again
        await keeper.look()
        await keeper.collect(yes_really=True)
        await keeper.compare(yes_really=True)
        await keeper.custody.orphans.delete_orphans()
    assert keeper.blobs.unclaimed.some(BLOBS_MAX) == []
    assert keeper.on_disk() == keeper.held()
    assert storm.wanted <= set(keeper.held())
    assert set(keeper.held()) <= storm.files
    for name in keeper.on_disk():
        assert await verify_blob(keeper.disk, keeper.blobs, keeper.metrics, name) == SIZE_BYTES
    assert list(keeper.directory.glob("lost/*")) == []
