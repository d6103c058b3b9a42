"""Records that nodes keep, in a storm from one seed: late and lost messages, pauses, elections, drifting
clocks.

The leader's leases and the node's cache are the product's; around them stands a model of the rest. A log is
what a leader has that is not committed: a new leader has a prefix of the log of some leader since the last
that committed anything, and everything else is dead once it commits (Raft's leader completeness). A member
that was deposed learns it late. Reads find what is committed at one instant between call and answer. Every
read and write goes into a history, which `tests.history` checks. `Rules` are the deliberate bugs.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.member.record_leases import Block, CacheLeases
from metadata.model.records import Caller, ContentRecord
from metadata.protocol.calls import FollowCall, FollowReply
from node.base.record_store import CachedRecords, PendingRead
from tests.history import Operation
from tests.history_records import Outcome
from tests.unit.file_records import available_file

SIMULATED_S = 60.0
DRIFT_MAX = 0.02  # of every clock; the product takes twice that between two and more
NODES, MEMBERS, FILES = 3, 3, 3
POLL_S, FOLLOW_TIMEOUT_S, WRITE_TIMEOUT_S = 0.5, 1.5, 0.5
CALLER = Caller("reader", 1)


@dataclass(frozen=True)
class Rules:
    """What the product does; a mutant leaves one of these out."""

    lease_counts_from_call: bool = True
    block_outlasts_its_caller: bool = True
    reads_under_way_are_spoiled: bool = True
    new_leader_waits: bool = True
    barrier_before_lease: bool = True
    lapse_forgets: bool = True
    acknowledgement_is_awaited: bool = True


class _Leases(CacheLeases):
    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules

    def lead(self, term: int, *, at_s: float) -> bool:
        is_news = super().lead(term, at_s=at_s)
        if not self._rules.new_leader_waits:
            self._quiet_until_s = -math.inf
        return is_news

    def wait_s(self, block: Block, *, at_s: float) -> float:
        if not self._rules.acknowledgement_is_awaited:
            return self._quiet_until_s - at_s
        return super().wait_s(block, at_s=at_s)


class _Records(CachedRecords):
    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules

    def begin(self, *, now_s: float) -> PendingRead | None:
        reading = super().begin(now_s=now_s)
        if reading is not None and not self._rules.reads_under_way_are_spoiled:
            reading.blocked = frozenset()
        return reading

    def follow(self, reply: FollowReply, *, sent_at_s: float, now_s: float) -> None:
        before = {reading: reading.blocked for reading in self._readings}
        if not self._rules.lapse_forgets and reply.term == self.term:
            self._ends_at_s = max(self._ends_at_s, now_s + 1e-6)
        super().follow(reply, sent_at_s=sent_at_s, now_s=now_s)
        if not self._rules.reads_under_way_are_spoiled:
            for reading, blocked in before.items():
                reading.blocked = blocked


@dataclass(eq=False)
class Write:
    """One command, from its call to whatever becomes of it."""

    file_uuid: str
    value: int
    called_at: float
    keys: frozenset[str]
    returned_at: float | None = None
    outcome: Outcome = "unknown"
    is_given_up: bool = False


@dataclass(eq=False)
class Member:
    """A coordinator. `led_term` is what it believes; `log` what is not committed of its log."""

    name: int
    rate: float
    leases: CacheLeases
    led_term: int = 0
    has_committed: bool = False  # something of its own term
    log: list[tuple[Write, "Member | None", Block | None]] = field(default_factory=list)


class Node:
    """A process that answers reads, and follows whom it takes for the leader."""

    def __init__(self, world: "World", name: int) -> None:
        self.world = world
        self.name = f"n{name}"
        self.rate = 1 + world.dice.uniform(-DRIFT_MAX, DRIFT_MAX)
        self.records = _Records(world.rules)
        self.paused_until = 0.0
        self._number = 0  # of the call under way

    def now_s(self) -> float:
        return 1000 + self.world.now * self.rate

    def follow(self) -> None:
        self._number += 1
        number, sent_at_s = self._number, self.now_s()
        call = FollowCall(self.name, self.records.term, self.records.version)
        member = self.world.believed_leader()
        self.world.message(lambda: self.world.answer(member, call, lambda r: reply(r)))
        self.world.at_node(self, FOLLOW_TIMEOUT_S / self.rate, lambda: give_up())

        def reply(answer: FollowReply) -> None:
            self.world.at_node(self, 0.0, lambda: receive(answer))

        def receive(answer: FollowReply) -> None:
            if number != self._number:
                return
            counts_from = sent_at_s if self.world.rules.lease_counts_from_call else self.now_s()
            self.records.follow(answer, sent_at_s=counts_from, now_s=self.now_s())
            self.follow()

        def give_up() -> None:
            if number == self._number:
                self.follow()

    def read(self) -> None:
        world, called_at = self.world, self.world.now
        file_uuid = world.any_file()
        found = self.records.get(CALLER, file_uuid, now_s=self.now_s())
        if found is not None:
            world.hits += 1
            world.note_read(self, file_uuid, found.available_at_ms, called_at)
            return
        reading = self.records.begin(now_s=self.now_s())

        def look() -> None:
            value = world.committed[file_uuid]
            world.after(world.delay_s(), lambda: world.at_node(self, 0.0, lambda: keep(value)))

        def keep(value: int) -> None:
            if reading is not None:
                self.records.keep(reading, CALLER, _record(file_uuid, value), now_s=self.now_s())
                self.records.end(reading)
            world.note_read(self, file_uuid, value, called_at)

        world.after(world.delay_s(), look)


class World:
    """Everything, for one seed. `run` simulates; `history` is what clients saw."""

    def __init__(self, seed: int, rules: Rules | None = None) -> None:
        self.dice = random.Random(seed)
        self.rules = rules or Rules()
        self.now = 0.0
        self.hits = self.acknowledged = self.elections = 0
        self.history: list[Operation] = []
        self.committed = {f"f{number}": 0 for number in range(FILES)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count(1)
        self._values = itertools.count(1)
        self._writes: list[Write] = []
        self.members = [
            Member(name, 1 + self.dice.uniform(-DRIFT_MAX, DRIFT_MAX), _Leases(self.rules))
            for name in range(MEMBERS)
        ]
        self._logs: list[Member] = []  # leaders since the last that committed something, itself included
        self._leader: Member | None = None
        self._term = 0
        self._nodes = [Node(self, name) for name in range(NODES)]

    def run(self) -> "World":
        self._elect()
        for node in self._nodes:
            node.follow()
            self._often(0.02, lambda node=node: self.at_node(node, 0.0, node.read))  # type: ignore[misc]
            self._often(6.0, lambda node=node: self._pause(node))  # type: ignore[misc]
        self._often(0.4, self._write)
        self._often(4.0, self._elect)
        while self._events and self.now < SIMULATED_S:
            self.now, _, event = heapq.heappop(self._events)
            event()
        for write in self._writes:
            self.history.append(_operation(write))
        return self

    # Time and messages

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), event))

    def at_node(self, node: Node, delay_s: float, event: Callable[[], None]) -> None:
        """Happens there once it is not paused."""

        def now_or_later() -> None:
            if node.paused_until > self.now:
                self.after(node.paused_until - self.now, now_or_later)
            else:
                event()

        self.after(delay_s, now_or_later)

    def message(self, delivered: Callable[[], None]) -> None:
        """Delivered after a while, or never."""
        if self.dice.random() < 0.98:
            self.after(self.delay_s(), delivered)

    def delay_s(self) -> float:
        return self.dice.uniform(0.3, 2.0) if self.dice.random() < 0.1 else self.dice.uniform(0.0005, 0.03)

    def _commit_delay_s(self) -> float:
        return self.dice.uniform(0.3, 2.0) if self.dice.random() < 0.1 else self.dice.uniform(0.001, 0.01)

    def any_file(self) -> str:
        return self.dice.choice(sorted(self.committed))

    def _often(self, mean_s: float, event: Callable[[], None]) -> None:
        def again() -> None:
            event()
            self.after(self.dice.expovariate(1 / mean_s), again)

        self.after(self.dice.expovariate(1 / mean_s), again)

    def _pause(self, node: Node) -> None:
        node.paused_until = self.now + self.dice.uniform(0.1, 4.0)

    # The group

    def believed_leader(self) -> Member:
        leading = [member for member in self.members if member.led_term]
        return self.dice.choice(leading or self.members)

    def _elect(self) -> None:
        """Another member leads, with a prefix of a log that may be; the one before may learn it late."""
        self.elections += 1
        former = self._leader
        self._term += 1
        elected = self.dice.choice([member for member in self.members if member is not former])
        sources = [member.log for member in self._logs] or [[]]
        source = self.dice.choice(sources)
        log = [(write, None, None) for write, _, _ in source[: self.dice.randint(0, len(source))]]
        if elected in self._logs:
            self._logs.remove(elected)  # what it had beyond this is overwritten
        elected.log, elected.has_committed = list(log), False
        self._logs.append(elected)
        self._leader, elected.led_term = elected, self._term
        self._observe(elected)
        term = self._term
        self.after(self._commit_delay_s(), lambda: self._commit(elected, term))
        if former is not None:
            former_term = former.led_term
            self.after(
                self.dice.choice((0.0, self.delay_s(), 3.0)), lambda: self._step_down(former, former_term)
            )

    def _step_down(self, member: Member, term: int) -> None:
        if member.led_term == term:
            member.led_term = 0
            self._observe(member)

    def _observe(self, member: Member) -> None:
        member.leases.lead(member.led_term, at_s=self._clock(member))

    def _clock(self, member: Member) -> float:
        return 5000 + self.now * member.rate

    def _commit(self, leader: Member, term: int) -> None:
        """The leader commits all that it has, if it still leads; then later again."""
        if self._leader is not leader or self._term != term:
            return
        leader.has_committed = True
        self._logs = [leader]
        log, leader.log = leader.log, []
        for write, proposer, block in log:
            self.committed[write.file_uuid] = write.value
            if proposer is not None and block is not None:
                proposer.leases.release(block)
                self.message(lambda write=write: self._acknowledge(write))  # type: ignore[misc]
        self.after(self._commit_delay_s(), lambda: self._commit(leader, term))

    # Writes

    def _write(self) -> None:
        file_uuid = self.any_file()
        keys = frozenset({self.dice.choice((f"file:{file_uuid}", f"file:{file_uuid}", "bucket:b", "*"))})
        write = Write(file_uuid, next(self._values), self.now, keys)
        self._writes.append(write)
        member = self.believed_leader()
        self.message(lambda: self._block(member, write))

    def _block(self, member: Member, write: Write) -> None:
        self._observe(member)
        if not member.led_term:
            return
        block = member.leases.block(write.keys, at_s=self._clock(member))
        self.after(WRITE_TIMEOUT_S * self.dice.choice((1, 5)), lambda: self._give_up(member, write, block))
        self._try_to_propose(member, write, block)

    def _try_to_propose(self, member: Member, write: Write, block: Block) -> None:
        self._observe(member)
        if block.term != member.led_term or write.is_given_up:
            return
        if (wait_s := member.leases.wait_s(block, at_s=self._clock(member))) > 0:
            # An acknowledgement is noticed by looking often.
            self.after(
                min(wait_s / member.rate + 1e-6, 0.005), lambda: self._try_to_propose(member, write, block)
            )
            return
        member.log.append((write, member, block))

    def _give_up(self, member: Member, write: Write, block: Block) -> None:
        write.is_given_up = True
        is_proposed = any(each is write for each, _, _ in member.log)
        if not is_proposed or not self.rules.block_outlasts_its_caller:
            member.leases.release(block)

    def _acknowledge(self, write: Write) -> None:
        if not write.is_given_up:
            self.acknowledged += 1
            write.outcome, write.returned_at = "ok", self.now

    # Subscribers

    def answer(self, member: Member, call: FollowCall, reply: Callable[[FollowReply], None]) -> None:
        """A member has received a call."""
        self._observe(member)
        term, received_at_s = member.led_term, self._clock(member)
        if not term:
            return
        member.leases.acknowledge(call.subscriber, call.term, call.acknowledged)
        is_due = member.leases.is_due(call.subscriber, at_s=received_at_s)

        def confirm() -> None:
            is_confirmed = self._leader is member and self._term == term and member.has_committed
            if is_confirmed or not is_due or not self.rules.barrier_before_lease:
                poll(self.now + POLL_S)
            elif member.led_term == term:
                self.after(0.02, confirm)

        def poll(until: float) -> None:
            is_behind = member.leases.is_behind(call.term, call.acknowledged)
            if not is_behind and self.now < until:
                self.after(0.01, lambda: poll(until))
            elif self.dice.random() < 0.05:
                self.after(self.delay_s(), tell)  # a paused process
            else:
                tell()

        def tell() -> None:
            if member.led_term != term:
                return
            leases, name = member.leases, call.subscriber
            if is_due:
                told = leases.grant(name, call.term, call.acknowledged, received_at_s=received_at_s)
            else:
                told = leases.news(name)
            self.message(lambda: reply(told))

        confirm()

    def note_read(self, node: Node, file_uuid: str, value: int, called_at: float) -> None:
        self.history.append(
            Operation(
                client=node.name,
                key=file_uuid,
                kind="read",
                value=value,
                called_at=called_at,
                returned_at=self.now,
                outcome="ok",
            )
        )


def _record(file_uuid: str, value: int) -> ContentRecord:
    file = available_file(file_uuid=file_uuid)
    return ContentRecord(file=file, replicas=[], available_at_ms=value, is_lasting=True)


def _operation(write: Write) -> Operation:
    return Operation(
        client="writer",
        key=write.file_uuid,
        kind="write",
        value=write.value,
        called_at=write.called_at,
        returned_at=write.returned_at,
        outcome=write.outcome,
    )
