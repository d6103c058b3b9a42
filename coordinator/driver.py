"""The shell around the Raft core: owns its clock, disk and network, and keeps the contract of
coordinator/raft.

One cycle: send what need not wait, persist (one write, one sync), send what had to wait, apply the
committed entries in one transaction, wake those who wait for them, advance. Disk work runs in one thread of
its own; the core itself is only ever touched on the event loop. A failed write or sync ends the process:
the page cache may have dropped the data.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ca.errors import PayloadTooLarge, Unavailable
from coordinator.clock import now_ms
from coordinator.commands import AnyCommand, Envelope, encode_envelope
from coordinator.log import SegmentLog
from coordinator.raft.config import Config
from coordinator.raft.core import NotLeader, ProposalRefused, Raft, Status
from coordinator.raft.messages import Entry, HardState, Message, Ready
from coordinator.store import Store

TICK_S = 0.08  # one heartbeat; an election starts after 10 to 20 of these without a leader
PROPOSALS_WAITING_MAX = 16_384
PROPOSED_AT_ONCE_MAX = 1024  # the core takes all of a slice or nothing
COMMAND_BYTES_MAX = 1 << 20  # no API body is larger, and no command larger than its body
READS_WAITING_MAX = 65_536
ROUND_TICKS_MAX = 5  # a ReadIndex round whose answer was lost is asked again after this


@dataclass(slots=True)
class _Proposal:
    data: bytes
    done: "asyncio.Future[bytes]"


@dataclass(slots=True)
class _Round:
    """Reads that share one ReadIndex."""

    started_tick: int
    readers: list["asyncio.Future[None]"] = field(default_factory=list)


class Driver:
    """Drives one member of the group.

    `run` is owned by the process; everything else is called on its event loop.
    """

    def __init__(
        self, config: Config, log: SegmentLog, store: Store, send: Callable[[Sequence[Message]], None]
    ) -> None:
        self.id = config.id
        self.members = config.members
        self._applied = store.applied_index()
        # The database may hold entries whose commit index did not reach the disk: they are committed.
        known = log.hard_state
        hard_state = HardState(known.term, known.vote, max(known.commit, self._applied))
        self._raft = Raft(config, log, hard_state, self._applied, random.Random())
        self._log = log
        self._store = store
        self._send = send
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="log-and-state")
        self._wake = asyncio.Event()
        self._ticks = 0
        self._proposals: list[_Proposal] = []
        self._waiting: dict[int, tuple[int, asyncio.Future[bytes]]] = {}  # by log index: (term, reply)
        self._readers: list[asyncio.Future[None]] = []  # asked since the last round began
        self._rounds: dict[bytes, _Round] = {}
        self._round_numbers = itertools.count(1)
        self._at_index: list[tuple[int, list[asyncio.Future[None]]]] = []  # reads that wait for an index
        self._broken: BaseException | None = None  # a broken invariant of the core: the process must end
        self._has_ended = False

    @property
    def applied_index(self) -> int:
        """The last entry that queries can see."""
        return self._applied

    @property
    def leader(self) -> str:
        """The leader of this member's term, "" if unknown."""
        return self._raft.leader

    @property
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows."""
        return self._raft.leader == self.id

    def status(self) -> Status:
        """This member as it sees itself."""
        return self._raft.status()

    def transfer_leader(self) -> None:
        """If this member leads, ask the most advanced follower to take over; nothing is promised."""
        status = self._raft.status()
        behind = [
            (p.match, member) for member, p in status.progress.items() if member != self.id and p.active
        ]
        if status.leader == self.id and behind:
            self._raft.transfer_leader(max(behind)[1])
            self._wake.set()

    async def run(self) -> None:
        """Drive until cancelled. Raises what the log or the store raised: the process must end then."""
        loop = asyncio.get_running_loop()
        next_tick = loop.time() + TICK_S
        if self.members == (self.id,):
            self._raft.campaign()  # alone there is nobody to wait for
        try:
            while True:
                await self._wait(0 if self._raft.has_ready() else next_tick - loop.time())
                if self._broken is not None:
                    raise self._broken
                if loop.time() >= next_tick:
                    # Ticks missed in a stall are dropped: a member that slept must not depose a leader.
                    next_tick = max(next_tick + TICK_S, loop.time())
                    self._tick()
                self._feed()
                if self._raft.has_ready():
                    await self._cycle(self._raft.ready())
        finally:
            self._has_ended = True
            self._fail_all(Unavailable("This coordinator is stopping."))
            self._disk.shutdown(wait=True)

    def step(self, message: Message) -> None:
        """A message came from a peer. What it breaks ends `run`, not the connection that it came on."""
        try:
            self._raft.step(message)
        except AssertionError as error:
            self._broken = error
        self._wake.set()

    async def propose(
        self, command: AnyCommand, *, session: int = 0, sequence: int = 0, acknowledged_below: int = 0
    ) -> bytes:
        """The encoded Reply once the command is committed and applied here.

        Raises NotLeader when another member leads or took over before this command was committed (it was
        not applied then); Unavailable when too many wait. The caller sets the deadline.
        """
        self._check_running()
        if not self.is_leader:
            raise NotLeader(self._raft.leader)
        if len(self._proposals) >= PROPOSALS_WAITING_MAX:
            raise Unavailable("Too many changes wait on this coordinator.")
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        assert not getattr(getattr(command, "caller", None), "token", ""), (
            "a user token on its way to the log"
        )
        envelope = Envelope(session, sequence, acknowledged_below, now_ms(), command)
        data = encode_envelope(envelope)
        if len(data) > COMMAND_BYTES_MAX:
            raise PayloadTooLarge(f"A change has at most {COMMAND_BYTES_MAX} bytes.")
        self._proposals.append(_Proposal(data, done))
        self._wake.set()
        return await done

    async def read_barrier(self) -> None:
        """Returns when a query sees everything that was acknowledged before this was called (ReadIndex).

        Raises Unavailable when there is no leader to ask or too many wait. The caller sets the deadline.
        """
        self._check_running()
        if len(self._readers) >= READS_WAITING_MAX:
            raise Unavailable("Too many reads wait on this coordinator.")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.append(done)
        self._wake.set()
        await done

    def _check_running(self) -> None:
        if self._has_ended:
            raise Unavailable("This coordinator is stopping.")

    async def _wait(self, seconds: float) -> None:
        """Until something comes, or `seconds` have passed; lets others run in any case."""
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _tick(self) -> None:
        self._ticks += 1
        self._raft.tick()
        for context, asked in list(self._rounds.items()):
            if self._ticks - asked.started_tick >= ROUND_TICKS_MAX:
                del self._rounds[context]
                self._readers.extend(asked.readers)

    def _feed(self) -> None:
        """Hand waiting proposals and reads to the core."""
        if self._proposals:
            self._propose_waiting()
        self._readers = [done for done in self._readers if not done.done()]
        if self._readers and not self._rounds:
            context = next(self._round_numbers).to_bytes(8)
            self._rounds[context] = _Round(self._ticks, self._readers)
            self._readers = []
            self._raft.read_index(context)

    def _propose_waiting(self) -> None:
        # A caller that gave up is skipped: what was not proposed yet need not be.
        waiting = [proposal for proposal in self._proposals if not proposal.done.done()]
        self._proposals = []
        for start in range(0, len(waiting), PROPOSED_AT_ONCE_MAX):
            self._propose_slice(waiting[start : start + PROPOSED_AT_ONCE_MAX])

    def _propose_slice(self, proposals: Sequence[_Proposal]) -> None:
        try:
            first_index, term = self._raft.propose([proposal.data for proposal in proposals])
        except (NotLeader, ProposalRefused) as error:
            refusal = (
                error
                if isinstance(error, NotLeader)
                else Unavailable("Too many changes wait for a quorum, or the lead is handed over.")
            )
            for proposal in proposals:
                proposal.done.set_exception(refusal)
            return
        for index, proposal in enumerate(proposals, first_index):
            self._replace_waiting(index, term, proposal.done)

    def _replace_waiting(self, index: int, term: int, done: "asyncio.Future[bytes]") -> None:
        # An older proposal at this index was truncated away while this member was not leading.
        earlier = self._waiting.pop(index, None)
        if earlier is not None and not earlier[1].done():
            earlier[1].set_exception(NotLeader(""))
        self._waiting[index] = (term, done)

    async def _cycle(self, ready: Ready) -> None:
        loop = asyncio.get_running_loop()
        self._send(ready.send_now)
        if ready.hard_state is not None or ready.entries or ready.truncate_from is not None:
            await loop.run_in_executor(self._disk, self._persist, ready)
        self._send(ready.send_after_sync)
        if ready.committed:
            replies = await loop.run_in_executor(self._disk, self._store.apply, ready.committed)
            self._applied = ready.committed[-1].index
            self._deliver(ready.committed, replies)
        for context in ready.reads_refused:
            self._refuse_round(context)
        for state in ready.read_states:
            if (asked := self._rounds.pop(state.context, None)) is not None:
                self._at_index.append((state.index, asked.readers))
        self._release_reads()
        self._raft.advance(ready)

    def _persist(self, ready: Ready) -> None:
        self._log.append(ready.hard_state, ready.truncate_from, ready.entries, sync=ready.must_sync)

    def _deliver(self, entries: Sequence[Entry], replies: Sequence[bytes]) -> None:
        for entry, reply in zip(entries, replies, strict=True):
            waiter = self._waiting.pop(entry.index, None)
            if waiter is None or waiter[1].done():
                continue
            term, done = waiter
            if term == entry.term:
                done.set_result(reply)
            else:
                done.set_exception(NotLeader(self._raft.leader))

    def _refuse_round(self, context: bytes) -> None:
        asked = self._rounds.pop(context, None)
        for done in asked.readers if asked else ():
            if not done.done():
                done.set_exception(Unavailable("There is no leader to confirm a read."))

    def _release_reads(self) -> None:
        still_waiting = []
        for index, readers in self._at_index:
            if index > self._applied:
                still_waiting.append((index, readers))
                continue
            for done in readers:
                if not done.done():
                    done.set_result(None)
        self._at_index = still_waiting

    def _fail_all(self, error: Exception) -> None:
        readers = [reader for asked in self._rounds.values() for reader in asked.readers] + self._readers
        readers += [reader for _, waiting in self._at_index for reader in waiting]
        replies = [p.done for p in self._proposals] + [done for _, done in self._waiting.values()]
        for reader in readers:
            if not reader.done():
                reader.set_exception(error)
        for reply in replies:
            if not reply.done():
                reply.set_exception(error)
