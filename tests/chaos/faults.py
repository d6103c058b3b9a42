"""What is done to a cluster, one kind at a time: break something, hold it, mend it, see writes resume.

Every fault is a coroutine that takes the arena; what it needs of the machine stands beside it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.arena import CLOCK_BASE_S, Arena
from tests.chaos.isolation import slow_link_rule, why_no_clock, why_no_disk, why_no_network
from tests.chaos.members import Member
from tests.chaos.membership import change_membership
from tests.chaos.network import CLIENTS

HOLD_S = (1.0, 3.0)  # how long a fault lasts; an election takes at most about two seconds
PAUSE_S = (2.5, 4.5)  # of a stopped leader: longer than any election timeout
LOOP_KILLS = 5
CLOCK_JUMP_S = 3600
_Inject = Callable[[Arena], Awaitable[None]]


def nothing_needed() -> str:
    """For what works on every machine."""
    return ""


def slow_links_need() -> str:
    """Why links cannot be slowed down."""
    return why_no_network() or ("" if slow_link_rule() else "the kernel has neither netem nor tbf")


@dataclass(frozen=True)
class Kind:
    """A kind of fault; `why_not` tells why this machine cannot do it."""

    name: str
    inject: _Inject
    why_not: Callable[[], str]
    needs_disk: bool = False
    needs_clock: bool = False


async def kill_leader(arena: Arena) -> None:
    """SIGKILL for the leader; how long until the next write is acknowledged is measured."""
    await arena.settled()
    leader = await arena.leader()
    killed_at = arena.now_s()
    leader.kill()
    took_s = await arena.resumed(killed_at, f"the death of the leader {leader.id}")
    if took_s is not None:
        arena.recoveries_s.append(took_s)
    await hold(arena)
    leader.start()


async def kill_follower(arena: Arena) -> None:
    """SIGKILL for a follower."""
    victim = arena.dice.choice(arena.others(await arena.leader()))
    victim.kill()
    await hold(arena)
    victim.start()


async def kill_all(arena: Arena) -> None:
    """SIGKILL for everybody at once: what was acknowledged is on their disks."""
    for member in arena.members.values():
        member.kill()
    await asyncio.sleep(arena.dice.uniform(0.0, 0.5))
    for member in arena.members.values():
        member.start()


async def kill_in_a_loop(arena: Arena) -> None:
    """One after the other dies and starts again, some before they are back in the group."""
    for _ in range(math.ceil(LOOP_KILLS * arena.pace)):
        victim = arena.any_member()
        victim.kill()
        await asyncio.sleep(arena.dice.uniform(0.0, 0.3))
        victim.start()
        await asyncio.sleep(arena.dice.uniform(0.1, 1.2))


async def pause_leader(arena: Arena) -> None:
    """SIGSTOP for the leader: it wakes up deposed, with calls that it thinks it may answer."""
    leader = await arena.leader()
    leader.pause()
    await hold(arena, PAUSE_S)
    leader.resume()


async def pause_follower(arena: Arena) -> None:
    """SIGSTOP for a follower: it takes what is sent, and answers nothing until it wakes up."""
    victim = arena.dice.choice(arena.others(await arena.leader()))
    victim.pause()
    await hold(arena, PAUSE_S)
    victim.resume()


async def partition(arena: Arena) -> None:
    """A minority is cut off from the rest, in half of the cases with the leader among it."""
    alone = await some_minority(arena)
    with_clients = arena.dice.random() < 0.3
    rest = [name for name in arena.members if name not in alone] + ([CLIENTS] if with_clients else [])
    pairs = [(a, b) for a in alone for b in rest]
    await cut_for_a_while(arena, [*pairs, *((b, a) for a, b in pairs)])


async def partition_one_way(arena: Arena) -> None:
    """What one member sends is lost, or what is sent to it; the other way works."""
    victim = await leader_or_other(arena)
    others = [other.id for other in arena.others(victim)]
    some = arena.dice.sample(others, arena.dice.randint(1, len(others)))
    pairs = [(victim.id, other) for other in some]
    if arena.dice.random() < 0.5:
        pairs = [(b, a) for a, b in pairs]
    await cut_for_a_while(arena, pairs)


async def slow_link(arena: Arena) -> None:
    """What one member sends goes slowly."""
    assert arena.network is not None
    arena.network.slow((await leader_or_other(arena)).id)
    await hold(arena)
    arena.network.heal()


async def jump_clock(arena: Arena) -> None:
    """The wall clock of a member jumps by an hour, there and back."""
    victim = await leader_or_other(arena)
    victim.set_clock(CLOCK_BASE_S + arena.dice.choice((-CLOCK_JUMP_S, CLOCK_JUMP_S)))
    await hold(arena)
    victim.set_clock(CLOCK_BASE_S)


async def fill_disk(arena: Arena) -> None:
    """The member with the small disk has no room left; reads must go on.

    Not on that member: a follower that cannot apply what others write does not know what is current.
    """
    (victim,) = [member for member in arena.members.values() if member.has_small_disk]
    victim.fill_disk()
    await hold(arena, PAUSE_S)
    if not await arena.workload.can_read(arena.prober):
        arena.faults.append(f"at {arena.now_s():.1f} s: no read is answered, the disk of {victim.id} is full")
    victim.free_disk()


async def hold(arena: Arena, bounds_s: tuple[float, float] = HOLD_S) -> None:
    """Let the fault last."""
    await asyncio.sleep(arena.dice.uniform(*bounds_s) * arena.pace)


async def leader_or_other(arena: Arena) -> Member:
    """The leader in half of the cases."""
    leader = await arena.leader()
    return leader if arena.dice.random() < 0.5 else arena.dice.choice(arena.others(leader))


async def some_minority(arena: Arena) -> list[str]:
    """The names of a minority, around the leader in half of the cases."""
    first = await leader_or_other(arena)
    size = arena.dice.randint(1, (len(arena.members) - 1) // 2)
    return [first.id, *arena.dice.sample([other.id for other in arena.others(first)], size - 1)]


async def cut_for_a_while(arena: Arena, pairs: list[tuple[str, str]]) -> None:
    """What the first of a pair sends does not reach the second, until it is over."""
    assert arena.network is not None
    arena.network.cut(pairs)
    await hold(arena, PAUSE_S)
    arena.network.heal()


KINDS = (
    Kind("kill_leader", kill_leader, nothing_needed),
    Kind("kill_follower", kill_follower, nothing_needed),
    Kind("kill_all", kill_all, nothing_needed),
    Kind("kill_loop", kill_in_a_loop, nothing_needed),
    Kind("pause_leader", pause_leader, nothing_needed),
    Kind("pause_follower", pause_follower, nothing_needed),
    Kind("partition", partition, why_no_network),
    Kind("partition_one_way", partition_one_way, why_no_network),
    Kind("slow_link", slow_link, slow_links_need),
    Kind("clock", jump_clock, why_no_clock, needs_clock=True),
    Kind("disk_full", fill_disk, why_no_disk, needs_disk=True),
    Kind("membership", change_membership, nothing_needed),
)
