"""The client of the coordinators: finds the leader, retries with the same sequence until its deadline.

It keeps one connection to every coordinator; the list of coordinators follows the view of the cluster.
Changes go to the leader. Reads go to any coordinator, in random order, as each answers linearizably, so that
the load is shared. A change is retried under its session and sequence, so it is applied once however often it
is sent. When the deadline passes, the caller gets Unavailable and does not know the outcome, as after any
lost connection. A coordinator that reports a failure is skipped, and asked last for a while.
"""

import asyncio
import itertools
import logging
import random
import secrets
import ssl
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from ca.errors import CATALOGUE, Conflict, FilestoreError, Internal, InvalidRequest, RateLimited, Unavailable
from ca.identity import Identity
from metadata.model.records import Caller, CoordinatorRecord, TokenKeyRecord
from metadata.model.rules import FIRST, OLDER_MEMBERS, PROVIDERS_SIGN_IN, UNKNOWN, NotInForce, require
from metadata.protocol.calls import (
    CALL_TIMEOUT_S,
    PROOF_NONE,
    AddCoordinatorCall,
    AnyCall,
    FollowCall,
    FollowReply,
    HeartbeatCall,
    HeartbeatReply,
    JoinCall,
    JoinCoordinatorCall,
    JoinReply,
    MintCall,
    MintReply,
    PlaceCall,
    PlaceReply,
    ProposeCall,
    ReadCall,
    RedeemCall,
    RemoveCoordinatorCall,
    RenewCall,
    RenewTokenCall,
    RotateKeyCall,
    RulesCall,
    StatusCall,
    StatusReply,
    TicketCall,
    TicketReply,
    TransferLeaderCall,
)
from metadata.protocol.commands import SESSION_ENDED, SESSION_NUMBER_MIN, AnyCommand, OpenSession
from metadata.protocol.queries import AnyQuery
from metadata.protocol.sign_in_calls import PROVIDER_TIMEOUT_S, SignInCall
from metadata.rpc import wire
from metadata.rpc.change_session import ChangeSession
from metadata.rpc.connection import LinkDown, PeerLink
from metadata.rpc.roster import Roster
from metadata.rpc.websocket import dialling
from runtime.bounds import COUNT_MAX
from runtime.time_limits import bounded_s

RETRY_S_MIN = 0.02
RETRY_S_MAX = 0.25
STATUS_PAUSES_S = (0.05, 0.1, 0.2, 0.4)  # in which a coordinator that is a little behind has caught up
TRY_TIMEOUT_S = 2.0  # one attempt; a coordinator that is silent for this long is left for another
PASSED_OVER_S = 15.0  # a coordinator that failed at a call is asked last for this long
SILENT_S = 0.5  # a coordinator that did not answer a call for this long is asked last
UNLED_S = 5.0  # of heartbeats that no leader has answered; an election takes less
UNLED_TRY_S = 0.5  # for a change then: the leader that is back is known by the next heartbeat

GONE_S = 60  # what a bucket has released leaves the disks within minutes: see machine/execution/quotas.py

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_ERRORS: dict[str, Callable[[str], FilestoreError]] = {
    error.code: error for error in CATALOGUE if error.code not in ("offset_mismatch", "range_not_satisfiable")
} | {RateLimited.code: lambda details: RateLimited(details, retry_after_s=GONE_S)}


class MetadataClient:
    """Changes and reads of the replicated state. `run` keeps the connections up until it is cancelled."""

    def __init__(
        self,
        identity: Identity,
        coordinators: Sequence[CoordinatorRecord],
        context: Callable[[], ssl.SSLContext],
        *,
        instance: str = "",
    ) -> None:
        """`instance`: which process of a member this is, where that matters."""
        assert coordinators, "a client needs a coordinator to ask"
        self._identity, self._instance = identity, instance
        self._context = context
        self._roster = Roster(())
        self._links: dict[str, PeerLink] = {}
        self._leader = self._reader = ""
        self.refusal = ""  # why heartbeats of this member are refused
        self.rules_in_force = UNKNOWN  # at least, by the newest heartbeat
        self._passed_over: dict[str, float] = {}  # until when, by the clock of the loop
        self.update(coordinators)
        self._session: ChangeSession | None = None
        self._opening = asyncio.Lock()
        self._led_at_s = self._beaten_at_s = 0.0  # when a leader answered, and when a heartbeat ended

    def update(self, coordinators: Iterable[CoordinatorRecord]) -> None:
        """These are the coordinators from now on. A call to one that goes is made again elsewhere."""
        known, self._links = self._links, {}
        for record in coordinators:
            link = known.get(record.coordinator_id)
            if link is None or not link.connects_to(record):
                link = PeerLink(self._identity, record, self._context, instance=self._instance)
            self._links[record.coordinator_id] = link
        self._order = itertools.cycle(random.sample(list(self._links), len(self._links)))
        if self._leader not in self._links:
            self._leader = ""
        if self._reader not in self._links:
            self._reader = next(self._order)
        self._roster.update(link.coordinator for link in self._links.values())

    async def run(self) -> None:
        """Dial every coordinator, again and again."""
        async with dialling() as http:
            await self._roster.run(lambda record: self._links[record.coordinator_id].run(http), "link to")

    async def propose(
        self, command: AnyCommand, reply_type: type[_T], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> _T:
        """Apply a command, once; return its reply.

        Raises its error, or Unavailable after `timeout_s`; sooner for a client that has waited long enough
        (`runtime/time_limits.py`), or without heartbeats of the leader; NotInForce for a field that an older
        leader would ignore.
        """
        require(command.rules_of_fields, self.rules_in_force)
        call = partial(ProposeCall, command=command)
        return msgspec.msgpack.decode(await self._change(call, timeout_s), type=reply_type)

    async def read(self, query: AnyQuery, reply_type: type[_T], *, timeout_s: float = CALL_TIMEOUT_S) -> _T:
        """The linearizable answer to a query. Raises as `propose` does."""
        answer = await self._anywhere(ReadCall(query), _ends_at(bounded_s(timeout_s)))
        return msgspec.msgpack.decode(answer, type=reply_type)

    async def join(self, call: JoinCall) -> JoinReply:
        """Let a node join. Repeating it with the same key is safe."""
        return msgspec.msgpack.decode(await self._operate(call), type=JoinReply)

    async def join_coordinator(self, call: JoinCoordinatorCall) -> CoordinatorRecord:
        """Let a machine become a coordinator. Repeating it is safe."""
        return msgspec.msgpack.decode(await self._operate(call), type=CoordinatorRecord)

    async def renew(self, csr: str) -> JoinReply:
        """A new certificate for the node that this client is."""
        return msgspec.msgpack.decode(await self._operate(RenewCall(csr)), type=JoinReply)

    async def mint(
        self,
        caller: Caller,
        user_id: str,
        roles: list[str] | None,
        groups: list[str] | None,
        ttl_seconds: int,
        label: str = "",
    ) -> MintReply:
        """A token for a user, who is created or updated. Admin only."""
        call = partial(MintCall, caller, user_id, roles, groups, ttl_seconds, label=label)
        return msgspec.msgpack.decode(await self._change(call, CALL_TIMEOUT_S), type=MintReply)

    async def redeem(self, secret_sha256: str, label: str) -> MintReply:
        """The token that an invitation is for; it is used up. Raises NotFound, Gone."""
        call = partial(RedeemCall, secret_sha256, label)
        return msgspec.msgpack.decode(await self._change(call, CALL_TIMEOUT_S), type=MintReply)

    async def renew_token(self, caller: Caller, ttl_seconds: int) -> MintReply:
        """Another token of the caller's own."""
        return await self._told(RenewTokenCall(caller, ttl_seconds), MintReply)

    async def ticket(self, caller: Caller, file_uuid: str, ttl_seconds: int) -> TicketReply:
        """A ticket to the content of a file that the caller may read."""
        return await self._told(TicketCall(caller, file_uuid, ttl_seconds), TicketReply)

    async def place(self, call: PlaceCall) -> PlaceReply:
        """Return where the bytes of a new file would be placed."""
        return await self._told(call, PlaceReply)

    async def rotate_token_key(self, caller: Caller, grace_seconds: int) -> TokenKeyRecord:
        """Another key signs user tokens from now on. Admin only."""
        call = partial(RotateKeyCall, caller, grace_seconds)
        return msgspec.msgpack.decode(await self._change(call, CALL_TIMEOUT_S), type=TokenKeyRecord)

    async def sign_in(self, call: SignInCall, reply_type: type[_T]) -> _T:
        """Return the leader's answer to a call about providers, which it may have to wait for."""
        require(PROVIDERS_SIGN_IN, self.rules_in_force)
        return await self._told(call, reply_type, PROVIDER_TIMEOUT_S)

    async def _told(self, call: AnyCall, reply_type: type[_T], timeout_s: float = CALL_TIMEOUT_S) -> _T:
        is_slow = timeout_s > CALL_TIMEOUT_S  # which a client knows
        answer = await self._at_leader(call, _ends_at(timeout_s if is_slow else bounded_s(timeout_s)))
        return msgspec.msgpack.decode(answer, type=reply_type)

    async def add_coordinator(self, caller: Caller, record: CoordinatorRecord) -> CoordinatorRecord:
        """Let a coordinator into the group, as a learner first. Admin only. Repeating it is safe."""
        answer = await self._operate(AddCoordinatorCall(caller, record))
        return msgspec.msgpack.decode(answer, type=CoordinatorRecord)

    async def remove_coordinator(self, caller: Caller, coordinator_id: str) -> None:
        """Take a coordinator out of the group for ever. Admin only. Repeating it is safe."""
        await self._operate(RemoveCoordinatorCall(caller, coordinator_id))

    async def transfer_leader(self, caller: Caller, target: str) -> str:
        """Transfer the lead to `target`, "" for the most advanced; return the new leader. Admin only."""
        answer = await self._operate(TransferLeaderCall(caller, target))
        return msgspec.msgpack.decode(answer, type=str)

    async def ask_coordinator(self, source: str, call: AnyCall, timeout_s: float = TRY_TIMEOUT_S) -> bytes:
        """Return what one coordinator answers to a call, in MessagePack.

        Raises Unavailable if it is not known here or does not answer, and the error of its answer.
        """
        if (link := self._links.get(source)) is None:
            raise Unavailable(f"The coordinator {source} is not a member of the cluster.")
        try:
            return await self._one(link, call, timeout_s)
        except (LinkDown, TimeoutError) as error:
            raise Unavailable(f"The coordinator {source} does not answer.") from error

    async def status(self, caller: Caller) -> dict[str, StatusReply | None]:
        """Return each coordinator's status, None for one that does not answer.

        It raises only if a coordinator rejects the caller. Each uses its own state: those that disagree are
        asked again, as the caller may have been given the permission, or lost it, a moment ago.
        """
        found, refusals = await self._statuses(caller)
        for pause_s in STATUS_PAUSES_S:
            kinds = {type(refusal) for refusal in refusals}
            if not refusals or (len(kinds) == 1 and not any(found.values())):
                break
            await asyncio.sleep(pause_s)
            found, refusals = await self._statuses(caller)
        if refusals:
            raise refusals[0]
        return found

    async def _statuses(self, caller: Caller) -> tuple[dict[str, StatusReply | None], list[BaseException]]:
        links = self._links
        answers = await asyncio.gather(
            *(self._one(link, StatusCall(caller)) for link in links.values()),
            return_exceptions=True,
        )
        found: dict[str, StatusReply | None] = {}
        refusals: list[BaseException] = []
        faults: list[BaseException] = []  # a failure of one does not discard the answers of others
        for coordinator_id, answer in zip(links, answers, strict=True):
            if isinstance(answer, bytes):
                found[coordinator_id] = msgspec.msgpack.decode(answer, type=StatusReply)
            elif isinstance(answer, (LinkDown, TimeoutError, Unavailable, Internal)):
                found[coordinator_id] = None
                faults += [answer] if isinstance(answer, Internal) else []
            else:
                refusals.append(answer)
        return found, refusals or (faults if not any(found.values()) else [])

    async def rules(self) -> dict[str, int]:
        """The newest rules that each coordinator knows; one that does not answer, or is older, knows none."""
        links = dict(self._links)
        known = await asyncio.gather(*map(self._rules_of, links.values()))
        return dict(zip(links, known, strict=True))

    async def _rules_of(self, link: PeerLink) -> int:
        try:
            return msgspec.msgpack.decode(await self._one(link, RulesCall()), type=int)
        except (LinkDown, TimeoutError, FilestoreError):
            return 0

    @property
    def coordinators(self) -> list[CoordinatorRecord]:
        """The coordinators that this client knows, and where they are."""
        return [link.coordinator for link in self._links.values()]

    @property
    def is_removed(self) -> bool:
        """Whether coordinators say that this member was removed, and none is connected."""
        links = self._links.values()
        return any(link.is_removed for link in links) and not any(link.is_up for link in links)

    async def heartbeat(self, coordinator_id: str, call: HeartbeatCall) -> HeartbeatReply | None:
        """Tell one coordinator that this member lives; None when it does not confirm it in time."""
        if (link := self._links.get(coordinator_id)) is None:
            return None
        try:
            answer = await self._one(link, call)
        except (LinkDown, TimeoutError, FilestoreError) as error:
            self.refusal = error.details if isinstance(error, Conflict) else self.refusal
            return None
        finally:
            self._beaten_at_s = asyncio.get_running_loop().time()
        reply, self.refusal = msgspec.msgpack.decode(answer, type=HeartbeatReply), ""
        self.rules_in_force = max(self.rules_in_force, reply.rules, FIRST)  # until 0.3.0: 0.1.0 tells none
        if call.proof == PROOF_NONE:
            return reply
        if reply.leader == coordinator_id:
            self._led_at_s = asyncio.get_running_loop().time()
        if reply.leader in self._links:
            self._leader = reply.leader
        return reply

    async def follow(self, call: FollowCall, *, timeout_s: float) -> FollowReply:
        """Return the leader's answer about the records cached here; raises Unavailable after `timeout_s`."""
        answer = await self._at_leader(call, _ends_at(timeout_s))
        return msgspec.msgpack.decode(answer, type=FollowReply)

    async def _one(self, link: PeerLink, call: AnyCall, timeout_s: float = TRY_TIMEOUT_S) -> bytes:
        answer = await link.call(call, timeout_s)
        if answer.status == wire.RETRY:
            raise Unavailable(answer.details)
        return _value(answer)

    async def _operate(self, call: AnyCall) -> bytes:
        """A call that may take the leader more than one entry of the log."""
        return await self._at_leader(call, _ends_at(2 * CALL_TIMEOUT_S))

    async def _change(self, build: Callable[[int, int, int], AnyCall], timeout_s: float) -> bytes:
        """Send a change under a session; once more under a new one if the old ended before it was sent."""
        is_unled = self._led_at_s > 0 and self._beaten_at_s - self._led_at_s > UNLED_S
        ends_at = _ends_at(bounded_s(min(timeout_s, UNLED_TRY_S) if is_unled else timeout_s))
        for _ in range(2):
            session = await self._open_session(ends_at)
            sequence = session.begin()
            try:
                call = build(session.number, sequence, session.acknowledged_below())
                return await self._at_leader(call, ends_at)
            except _SessionEnded as ended:
                if self._session is session:
                    self._session = None
                if ended.tries > 1:
                    raise Unavailable("It is not known whether this change was applied.") from ended
            finally:
                session.end(sequence)
        raise Unavailable("The coordinators close sessions too quickly.")

    async def _open_session(self, ends_at: float) -> ChangeSession:
        """The session that is open, or a new one."""
        if self._session is not None:
            return self._session
        try:
            # Who holds the lock may have longer than this caller.
            async with asyncio.timeout_at(ends_at), self._opening:
                if self._session is not None:
                    return self._session
                drawn = SESSION_NUMBER_MIN + secrets.randbelow(COUNT_MAX - SESSION_NUMBER_MIN)
                call = ProposeCall(0, 0, 0, OpenSession(nonce="", number=drawn))
                number = msgspec.msgpack.decode(await self._at_leader(call, ends_at), type=int)
                self._session = ChangeSession(number)
                return self._session
        except TimeoutError as error:
            raise _no_answer() from error

    async def _at_leader(self, call: AnyCall, ends_at: float) -> bytes:
        """Try the leader, and possible leaders, until one answers. Raises Unavailable at `ends_at`."""
        pause_s, faults = RETRY_S_MIN, set[str]()
        for tries in itertools.count(1):
            leader = self._leader or self._next()
            if (answer := await self._ask(leader, call, ends_at, faults)) is None:
                self._leader = ""
            else:
                if answer.status == wire.OK and leader in self._links:
                    self._leader = leader
                if answer.status == SESSION_ENDED:
                    raise _SessionEnded(tries)
                if _is_unknown(call, answer):
                    raise _too_old()
                if answer.status not in (wire.NOT_LEADER, wire.RETRY):
                    self._led_at_s = asyncio.get_running_loop().time()
                    return _value(answer)
                named = answer.details if answer.status == wire.NOT_LEADER else ""
                self._leader = named if named in self._links else ""
            await asyncio.sleep(min(pause_s, _try_s(ends_at)))
            pause_s = min(pause_s * 2, RETRY_S_MAX)
        raise AssertionError("unreachable")

    async def _anywhere(self, call: AnyCall, ends_at: float) -> bytes:
        """Try one coordinator after the other until one answers.

        Raises Unavailable at `ends_at`; NotInForce when all that can be reached are of older versions that
        cannot.
        """
        pause_s, older, faults = 0.0, set[str](), set[str]()
        while True:
            asked = self._reader
            answer = await self._ask(asked, call, ends_at, faults)
            if answer is not None and _is_unknown(call, answer):
                older.add(asked)
                if all(one in older or not link.is_up for one, link in self._links.items()):
                    raise _too_old()
            elif answer is not None and answer.status != wire.RETRY:
                return _value(answer)
            self._reader = self._next()
            await asyncio.sleep(min(pause_s, _try_s(ends_at)))
            pause_s = min(max(pause_s * 2, RETRY_S_MIN), RETRY_S_MAX)

    async def _ask(
        self, coordinator_id: str, call: AnyCall, ends_at: float, faults: set[str]
    ) -> wire.AnswerFrame | None:
        """Like `_try`; also None if the coordinator failed at this call and another may not.

        It is then skipped.

        `faults` has those that failed at this call. A call that fails twice at one coordinator, or at all of
        them, fails.
        """
        answer = await self._try(coordinator_id, call, ends_at)
        if answer is None or answer.status != Internal.code:
            return answer
        self._passed_over[coordinator_id] = _ends_at(PASSED_OVER_S)
        is_repeated = coordinator_id in faults
        faults.add(coordinator_id)
        return answer if is_repeated or faults.issuperset(self._links) else None

    def _next(self) -> str:
        """Return the coordinator to ask next: failed and silent ones only if all others are too."""
        at_s = asyncio.get_running_loop().time()
        self._passed_over = {one: end_s for one, end_s in self._passed_over.items() if end_s > at_s}
        for _ in self._links:
            one = next(self._order)
            if one not in self._passed_over and self._links[one].silent_s < SILENT_S:
                return one
        return next(self._order)

    async def _try(self, coordinator_id: str, call: AnyCall, ends_at: float) -> wire.AnswerFrame | None:
        """Return what one coordinator answers, or None if it is not reachable.

        Raises Unavailable at `ends_at`.
        """
        try_s = _try_s(ends_at, PROVIDER_TIMEOUT_S if isinstance(call, SignInCall) else TRY_TIMEOUT_S)
        try:
            return await self._links[coordinator_id].call(call, try_s)
        except LinkDown:
            return None
        except TimeoutError as error:
            if try_s < TRY_TIMEOUT_S:  # too little time to hold it against that coordinator
                raise _no_answer() from error
            until_s = max(self._passed_over.get(coordinator_id, 0.0), _ends_at(TRY_TIMEOUT_S))
            self._passed_over[coordinator_id] = until_s  # it is not asked twice in a row
            return None


class _SessionEnded(Exception):
    """The coordinators no longer know our session; `tries` counts how often the change was sent under it."""

    def __init__(self, tries: int) -> None:
        super().__init__("session ended")
        self.tries = tries


def _ends_at(timeout_s: float) -> float:
    return asyncio.get_running_loop().time() + timeout_s


def _try_s(ends_at: float, most_s: float = TRY_TIMEOUT_S) -> float:
    """Return the timeout of one attempt. Raises Unavailable if no time is left."""
    left_s = ends_at - asyncio.get_running_loop().time()
    if left_s <= 0:
        raise _no_answer()
    return min(left_s, most_s)


def _no_answer() -> Unavailable:
    return Unavailable("The coordinators did not answer: they have no majority, or cannot be reached.")


def _is_unknown(call: AnyCall, answer: wire.AnswerFrame) -> bool:
    """Return whether a coordinator of an older version does not know the request: it names the tag then."""
    match call:
        case ReadCall(query=asked) | ProposeCall(command=asked):
            tag = asked.__struct_config__.tag
        case _:
            tag = call.__struct_config__.tag
    is_invalid = answer.status == InvalidRequest.code
    return is_invalid and answer.details.startswith(f"{wire.MALFORMED}: Invalid value {tag!r}")


def _too_old() -> NotInForce:
    return NotInForce("A coordinator still runs a version without this request. Upgrade it.")


def _value(answer: wire.AnswerFrame) -> bytes:
    if answer.status == wire.OK:
        return answer.value
    raise _error(answer.status, answer.details)


def _error(code: str, details: str) -> FilestoreError:
    if details == OLDER_MEMBERS:  # with the code of Unavailable, as older members know no other one
        return NotInForce(details)
    return _ERRORS.get(code, Internal)(details)
