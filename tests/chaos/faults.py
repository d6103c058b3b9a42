"""What is done to a cluster, one kind at a time: break something, hold it, mend it, see writes resume.

Members are cut off by a packet filter where one works, else by a library in the members themselves; their
clocks and disks are always the libraries' business.

Every fault is a coroutine that takes the arena; what it needs of the machine stands beside it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.chaos.arena import CLOCK_BASE_S, Arena
from tests.chaos.isolation import slow_link_rule, why_no_cuts, why_no_disk, why_no_namespaces, why_no_shims
from tests.chaos.members import Member
from tests.chaos.membership import change_membership
from tests.chaos.network import CLIENTS
from tests.chaos.wrong_clock import wrong_clock

HOLD_S = (1.0, 3.0)  # how long a fault lasts; an election takes at most about two seconds
PAUSE_S = (2.5, 4.5)  # of a stopped leader: longer than any election timeout
SLOW_S = (5.0, 8.0)  # of a slow disk: many syncs
HANG_S = (2.0, 4.0)  # of one that hangs
SYNC_MS = (300, 1000)
LOOP_KILLS = 5
CLOCK_JUMP_S = 3600
_Inject = Callable[[Arena], Awaitable[None]]


def nothing_needed() -> str:
    """For what works on every machine."""
    return ""


def slow_links_need() -> str:
    """Why links cannot be slowed down."""
    return why_no_namespaces() or ("" if slow_link_rule() else "the kernel has neither netem nor tbf")


@dataclass(frozen=True)
class Kind:
    """A kind of fault; `why_not` tells why this machine cannot do it."""

    name: str
    inject: _Inject
    why_not: Callable[[], str]
    needs_disk: bool = False


async def nothing(arena: Arena) -> None:
    """For comparison: what clients wait on this machine, as busy as it is."""
    await hold(arena)


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
    await _kill_for_a_while(arena, arena.dice.choice(arena.others(await arena.leader())))


async def kill_all(arena: Arena) -> None:
    """SIGKILL for all coordinators at once: what was acknowledged is on their disks."""
    await _kill_at_once(arena, list(arena.members.values()))


async def kill_node(arena: Arena) -> None:
    """SIGKILL for a node: two are left, which are enough to write to."""
    await _kill_for_a_while(arena, any_node(arena))


async def kill_nodes(arena: Arena) -> None:
    """SIGKILL for all nodes at once: what was acknowledged is on their disks too."""
    await _kill_at_once(arena, list(arena.nodes.values()))


async def kill_everything(arena: Arena) -> None:
    """SIGKILL for coordinators and nodes at once."""
    await _kill_at_once(arena, arena.everybody)


async def _kill_for_a_while(arena: Arena, victim: Member) -> None:
    victim.kill()
    await hold(arena)
    victim.start()


async def _kill_at_once(arena: Arena, victims: Sequence[Member]) -> None:
    for member in victims:
        member.kill()
    await asyncio.sleep(arena.dice.uniform(0.0, 0.5))
    for member in victims:
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


async def pause_node(arena: Arena) -> None:
    """SIGSTOP for a node: what it is sent gets no answer until it wakes up, with leases that are over."""
    victim = any_node(arena)
    victim.pause()
    await hold(arena, PAUSE_S)
    victim.resume()


async def partition(arena: Arena) -> None:
    """A minority is cut off from the rest, in half of the cases with the leader among it.

    Clients and nodes reach everybody, or are on the side of the rest.
    """
    alone = await some_minority(arena)
    with_clients = arena.dice.random() < 0.3
    rest = [name for name in arena.members if name not in alone]
    rest += [CLIENTS, *arena.nodes] if with_clients else []
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


async def mute(arena: Arena) -> None:
    """A member takes and does what it is sent, and nobody hears of it: not even the clients and nodes."""
    victim = await leader_or_other(arena)
    everybody = [*(other.id for other in arena.others(victim)), CLIENTS, *arena.nodes]
    await cut_for_a_while(arena, [(victim.id, name) for name in everybody])


async def slow_link(arena: Arena) -> None:
    """What one member sends goes slowly."""
    assert arena.network is not None
    arena.network.slow((await leader_or_other(arena)).id)
    await hold(arena)
    arena.mend()


async def jump_clock(arena: Arena) -> None:
    """The wall clock of a member jumps by an hour, there and back."""
    victim = await leader_or_other(arena)
    victim.set_clock(CLOCK_BASE_S + arena.dice.choice((-CLOCK_JUMP_S, CLOCK_JUMP_S)))
    await hold(arena)
    victim.set_clock(CLOCK_BASE_S)


async def hold_wrong_clock(arena: Arena) -> None:
    """The wall clock of a member stays minutes to hours wrong."""
    await wrong_clock(arena, await leader_or_other(arena))


async def slow_disk(arena: Arena) -> None:
    """Each sync of one member takes a third of a second to a whole one."""
    assert arena.shims is not None
    victim = await leader_or_other(arena)
    with arena.shims.disks.slow(f"{victim.data}/", "S", arena.dice.randint(*SYNC_MS)):
        await hold(arena, SLOW_S)


async def hang_disk(arena: Arena) -> None:
    """The syncs of one member do not return for seconds; then all do."""
    assert arena.shims is not None
    victim = await leader_or_other(arena)
    with arena.shims.disks.hanging(f"{victim.data}/", "S"):
        await hold(arena, HANG_S)


async def fill_disk(arena: Arena) -> None:
    """The member with the small disk has no room left; reads must go on.

    Not on that member: a follower that cannot apply what others write does not know what is current.
    """
    (victim,) = [member for member in arena.members.values() if member.has_small_disk]
    await asyncio.to_thread(victim.fill_disk)  # hundreds of MB of memory
    await hold(arena, PAUSE_S)
    if not await arena.workload.can_read(arena.prober):
        arena.faults.append(f"at {arena.now_s():.1f} s: no read is answered, the disk of {victim.id} is full")
    await asyncio.to_thread(victim.free_disk)


async def hold(arena: Arena, bounds_s: tuple[float, float] = HOLD_S) -> None:
    """Let the fault last."""
    await asyncio.sleep(arena.dice.uniform(*bounds_s) * arena.pace)


def any_node(arena: Arena) -> Member:
    """A node, by the dice."""
    victim = arena.nodes[arena.dice.choice(sorted(arena.nodes))]
    arena.victim = victim.id
    return victim


async def leader_or_other(arena: Arena) -> Member:
    """The leader in half of the cases."""
    leader = await arena.leader()
    victim = leader if arena.dice.random() < 0.5 else arena.dice.choice(arena.others(leader))
    arena.victim = f"{victim.id}, which leads" if victim is leader else victim.id
    return victim


async def some_minority(arena: Arena) -> list[str]:
    """The names of a minority, around the leader in half of the cases."""
    first = await leader_or_other(arena)
    size = arena.dice.randint(1, (len(arena.members) - 1) // 2)
    return [first.id, *arena.dice.sample([other.id for other in arena.others(first)], size - 1)]


async def cut_for_a_while(arena: Arena, pairs: list[tuple[str, str]]) -> None:
    """What the first of a pair sends does not reach the second, until it is over."""
    arena.cut(pairs)
    await hold(arena, PAUSE_S)
    arena.mend()


KINDS = (
    Kind("nothing", nothing, nothing_needed),
    Kind("kill_leader", kill_leader, nothing_needed),
    Kind("kill_follower", kill_follower, nothing_needed),
    Kind("kill_all", kill_all, nothing_needed),
    Kind("kill_loop", kill_in_a_loop, nothing_needed),
    Kind("kill_node", kill_node, nothing_needed),
    Kind("kill_nodes", kill_nodes, nothing_needed),
    Kind("kill_everything", kill_everything, nothing_needed),
    Kind("pause_leader", pause_leader, nothing_needed),
    Kind("pause_follower", pause_follower, nothing_needed),
    Kind("pause_node", pause_node, nothing_needed),
    Kind("partition", partition, why_no_cuts),
    Kind("partition_one_way", partition_one_way, why_no_cuts),
    Kind("mute", mute, why_no_cuts),
    Kind("slow_link", slow_link, slow_links_need),
    Kind("slow_disk", slow_disk, why_no_shims),
    Kind("slow_disk_hang", hang_disk, why_no_shims),
    Kind("clock", jump_clock, why_no_shims),
    Kind("clock_wrong", hold_wrong_clock, why_no_shims),
    Kind("disk_full", fill_disk, why_no_disk, needs_disk=True),
    Kind("membership", change_membership, nothing_needed),
)
