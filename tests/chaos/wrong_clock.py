"""A wall clock that stays wrong: who has it does not lead for long, and no token is refused for it.

Tokens are tried at every member: the admin's, which the clients show anyway and which a clock calls over
that is far enough ahead, and two that are minted for it. The one from before the fault ends in a minute or
two, by the right time; the one from within has just begun, and a clock that is behind calls it too early.
"""

import asyncio

from ca.errors import FilestoreError, Unauthorized, Unavailable
from metadata.model.records import Caller, UserRecord
from metadata.protocol.queries import GetUser
from metadata.rpc.view import HEARTBEAT_S
from tests.chaos.arena import CLOCK_BASE_S, POLL_S, Arena
from tests.chaos.clients import Client
from tests.chaos.members import Member

SHIFTS_S = (180, 1800, 3600, 13 * 3600)  # ahead or behind: all by more than tokens are taken early (30 s)
TOKEN_TTL_S = 120  # longer than the fault; a clock that is ahead calls it over
MINT_TIMEOUT_S = 20.0
# The third look of one each two seconds, after a heartbeat (1 s), has another elected (3 s).
LED_S_MAX = 8.0
HELD_S = (4.0, 7.0)  # by one that does not lead, or no longer
ASK_AGAIN_S = 0.3


async def wrong_clock(arena: Arena, victim: Member) -> None:
    """The clock of a member is minutes to hours wrong for seconds; one that leads has to hand over."""
    shift_s = arena.dice.choice(SHIFTS_S) * arena.dice.choice((-1, 1))
    await asyncio.sleep(
        2 * HEARTBEAT_S
    )  # one that has just started goes by its own clock until it hears others
    wrong = f"{victim.id} is {shift_s:+d} s wrong"
    early = await _minted(arena)
    victim.set_clock(CLOCK_BASE_S + shift_s)
    try:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(_show_tokens(arena, wrong, early))
            await _hands_over(arena, victim, wrong)
            await asyncio.sleep(arena.dice.uniform(*HELD_S) * arena.pace)
            asking.cancel()
    finally:
        victim.set_clock(CLOCK_BASE_S)


async def _hands_over(arena: Arena, victim: Member, wrong: str) -> None:
    """Until it does not lead; a fault when that takes too long."""
    began_at = arena.now_s()
    while await arena.leader() is victim:
        if arena.now_s() - began_at > LED_S_MAX:
            arena.faults.append(
                f"at {arena.now_s():.1f} s: the clock of {wrong}, and it leads since"
                f" {arena.now_s() - began_at:.1f} s"
            )
            return
        await asyncio.sleep(POLL_S)


async def _show_tokens(arena: Arena, wrong: str, early: Caller) -> None:
    """To every member, again and again; what one refuses is a fault. Until cancelled."""
    tokens = {"from before": early, "from within": await _minted(arena)}
    refusals = set[str]()
    while True:
        for client in list(arena.pinned.values()):
            for what, caller in tokens.items():
                refusal = await _refusal(arena, client, caller)
                if refusal and f"{client.name} {what}" not in refusals:
                    refusals.add(f"{client.name} {what}")
                    arena.faults.append(
                        f"at {arena.now_s():.1f} s: {client.name} was refused with a token {what}: {refusal};"
                        f" the clock of {wrong}"
                    )
        await asyncio.sleep(ASK_AGAIN_S)


async def _refusal(arena: Arena, client: Client, caller: Caller) -> str:
    """Why this client is refused what everybody with a valid token is answered; "" also for no answer."""
    try:
        await client.metadata.read(GetUser(caller=caller), UserRecord, timeout_s=client.timeout_s)
    except Unavailable as error:
        arena.workload.ledger.errors[f"token {error.code}"] += 1
    except FilestoreError as error:
        return f"{error.code} {error.details}"
    return ""


async def _minted(arena: Arena) -> Caller:
    """The admin, with a token of now. Raises TimeoutError."""
    subject, generation = arena.caller.subject, arena.caller.generation
    async with asyncio.timeout(MINT_TIMEOUT_S):
        while True:
            try:
                reply = await arena.observer.mint(arena.caller, subject, None, None, TOKEN_TTL_S)
            except Unauthorized as error:
                arena.faults.append(
                    f"at {arena.now_s():.1f} s: the admin's token mints none: {error.details}"
                )
            except Unavailable as error:
                arena.workload.ledger.errors[f"mint {error.code}"] += 1
            else:
                return Caller(subject, generation, reply.token)
            await asyncio.sleep(ASK_AGAIN_S)
