"""Coordinators come and go while others die: one is added, and when it votes one of the group is removed.

The group has the same size before and after. Adding and removing are repeated until they are acknowledged,
as an operator would; the one that is removed must end by itself, with code 0.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ca.errors import Conflict, FilestoreError, NotFound, Unavailable
from coordinator.admin import setup
from coordinator.storage.config import CoordinatorFiles
from metadata.model.records import ClusterView
from metadata.protocol.queries import GetView
from tests.chaos.arena import POLL_S, Arena, new_member, pinned_client
from tests.chaos.members import Member

CHANGE_TIMEOUT_S = 60.0
RETRY_S = 0.25
SHAKE_S_MAX = 0.6  # from the request on: before, during and after the change


async def change_membership(arena: Arena) -> None:
    """One comes, one goes, and in between somebody may die."""
    guest = await asyncio.to_thread(_prepared, arena)
    guest.start()
    await _while_shaken(arena, guest, _acknowledged(arena, lambda: _add(arena, guest)))
    _take_in(arena, guest)
    await _until(arena, lambda view: _role(view, guest.id) == "voter")
    candidates = [member for member in arena.members.values() if not member.has_small_disk]
    leaving = arena.dice.choice(candidates)
    leaving.may_end = True
    await _while_shaken(arena, leaving, _acknowledged(arena, lambda: _remove(arena, leaving)))
    await _ended(arena, leaving)
    _see_off(arena, leaving)


def _prepared(arena: Arena) -> Member:
    """The directory of a coordinator that nobody knows yet, made from the bundle of the first ones."""
    name = f"c{next(arena.numbers)}"
    if arena.network is not None:
        arena.network.add(name)
    guest = new_member(arena.directory, name, arena.network, arena.shims)
    guest.prepare()
    setup.init_from_bundle(guest.data, CoordinatorFiles(arena.directory / "c1").bundle, name, guest.record)
    return guest


async def _add(arena: Arena, guest: Member) -> None:
    await arena.observer.add_coordinator(arena.caller, guest.record)


async def _remove(arena: Arena, leaving: Member) -> None:
    await arena.observer.remove_coordinator(arena.caller, leaving.id)


def _take_in(arena: Arena, guest: Member) -> None:
    """The clients know it, and one of them asks nobody else."""
    arena.members[guest.id] = guest
    arena.tell_clients()
    client = arena.pinned[guest.id] = pinned_client(arena.access, guest)
    arena.own(client.metadata.run())
    arena.workload.hire(client)


def _see_off(arena: Arena, leaving: Member) -> None:
    """The clients forget it."""
    del arena.members[leaving.id]
    arena.tell_clients()
    arena.pinned.pop(leaving.id).is_dismissed = True


async def _acknowledged(arena: Arena, change: Callable[[], Awaitable[None]]) -> None:
    """Repeat a change until it is acknowledged. Raises TimeoutError."""
    async with asyncio.timeout(CHANGE_TIMEOUT_S):
        while True:
            try:
                await change()
            except (Unavailable, Conflict, NotFound) as error:
                arena.workload.ledger.errors[f"membership {error.code}"] += 1
                await asyncio.sleep(RETRY_S)
            else:
                return


async def _while_shaken(arena: Arena, spared: Member, change: Awaitable[None]) -> None:
    """Make a change; in half of the cases another member is killed and started again meanwhile."""
    victim = arena.dice.choice(arena.others(spared))
    after_s, is_hit = arena.dice.uniform(0, SHAKE_S_MAX), arena.dice.random() < 0.5

    async def shake() -> None:
        await asyncio.sleep(after_s)
        victim.kill()
        await asyncio.sleep(after_s)
        victim.start()

    await asyncio.gather(change, *([shake()] if is_hit else []))


async def _until(arena: Arena, holds: Callable[[ClusterView], bool]) -> None:
    """Until the cluster's view says so. Raises TimeoutError."""
    async with asyncio.timeout(CHANGE_TIMEOUT_S):
        while True:
            try:
                if holds(await arena.observer.read(GetView(), ClusterView)):
                    return
            except FilestoreError as error:
                arena.workload.ledger.errors[f"view {error.code}"] += 1
            await asyncio.sleep(POLL_S)


async def _ended(arena: Arena, leaving: Member) -> None:
    """Until the removed one has ended; it is a fault if it does not, or not with code 0."""
    give_up_at = arena.now_s() + CHANGE_TIMEOUT_S
    while leaving.runs and arena.now_s() < give_up_at:
        await asyncio.sleep(POLL_S)
    code = None if leaving.process is None else leaving.process.poll()
    if code != 0:
        arena.faults.append(f"{leaving.id} was removed and has ended with {code} (None: not at all)")
        leaving.kill()


def _role(view: ClusterView, coordinator_id: str) -> str:
    return next((c.role for c in view.coordinators if c.coordinator_id == coordinator_id), "")
