"""One simulated computer: the product's Member, log and store on a disk and in a process that can fail.

A turn goes as `coordinator.member.member` says. Each of its steps is an event of its own on the world's
clock, so that anything may happen in between; and before each of them the process may die. The disk outlives
it.
"""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from ca.errors import Unavailable
from coordinator.member.member import RaftMember, Waiter, with_membership
from coordinator.raft.config import Config
from coordinator.raft.messages import Entry, HardState, Members, Message, Ready
from coordinator.storage import segment as form
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.reopening import recover
from coordinator.storage.state_store import Store
from tests.sim.checkers import Checkers
from tests.sim.database import Database
from tests.sim.disk import Crashed, SimulatedDirectory
from tests.sim.genesis import Genesis, empty_image
from tests.sim.snapshots import Fetch, SimulatedSnapshots
from tests.sim.weather import Weather

LOG_CACHE_BYTES_MAX = 2000  # small: reads of the log go to its files too
BATCH_OPERATIONS = 2  # a write and a sync; the process may die at any of them, or behind
DISK_OPERATIONS_MAX = 12  # with a new segment, or a compaction
TIDY_SHARE = 0.3  # of the times that a machine keeps house


class Surroundings(Protocol):
    """What a machine needs of the world around it: the simulated one, or that of a transcript."""

    checkers: Checkers

    def send(self, source: str, messages: Sequence[Message]) -> None:
        """Messages leave on the network."""

    def later(self, machine: "Machine", step: Callable[[], None], name: str) -> None:
        """A blocking step of the machine takes its time, unless the process dies before."""

    def ask_chunk(self, fetch: Fetch) -> None:
        """The machine asks another for the next part of a snapshot."""

    def dies_at(self, machine: "Machine", boundary: str) -> bool:
        """Whether the process dies here."""

    def note(self, text: Callable[[], str]) -> None:
        """Something worth a line in the journal happened, if there is one."""


class Machine:
    """A member of the cluster, up or down."""

    def __init__(
        self,
        name: str,
        surroundings: Surroundings,
        weather: Weather,
        rand: random.Random,
        genesis: Genesis | None,
    ) -> None:
        self.name = name
        self.surroundings = surroundings
        self.weather = weather
        self.rand = rand
        self.directory = SimulatedDirectory(rand)
        self.database = Database(genesis.image if genesis else empty_image(), rand)
        self.snapshots = SimulatedSnapshots(self)
        self.introduction: Members | None = None  # the group, for a member that has no state yet
        self.member: RaftMember | None = None  # None while the process is down
        self.log: SegmentLog
        self.store: Store
        self.fetch: Fetch | None = None
        self.epoch = 0  # of the process
        self.paused_until = 0
        self.clock_rate = 1.0
        self.sleeps = False  # as a driver does, until the member is to be told of time
        self._untold_ticks = 0
        self.is_applying = False
        self.has_lost = False  # the end of its log
        self._ready: Ready | None = None
        if genesis is not None:
            log = self._open_log()
            last = genesis.entries[-1]
            log.append(HardState(last.term, "", last.index), None, genesis.entries, sync=True)
            log.close()
        surroundings.checkers.machine_made(self, genesis)

    @property
    def is_up(self) -> bool:
        """Whether the process runs."""
        return self.member is not None

    def _open_log(self) -> SegmentLog:
        return SegmentLog.open_in(
            self.directory,
            segment_bytes=self.weather.segment_bytes,
            cache_bytes_max=LOG_CACHE_BYTES_MAX,
            draw_bytes=self.rand.randbytes,
        )

    def start(self) -> None:
        """The process comes up with what its disk holds. A second crash may come while it does."""
        assert self.member is None, f"{self.name} runs already"
        self.epoch += 1
        try:
            self.log = self._open_log()
            self.store = self.database.open()
            replayed_after = self.store.applied_index()
            told = recover(self.log, self.store)
            if told:
                self.surroundings.note(lambda: f"{self.name}: {told}")
            self.surroundings.checkers.told(self, is_lost=bool(told))
        except Crashed:
            self._end(power=True)
            return
        config = self._config()
        rand = random.Random(self.rand.getrandbits(64))
        self.member = RaftMember(
            config, self.log, self.store, self.snapshots, rand, trailing_entries=self.weather.trailing_entries
        )
        self._ready, self.is_applying, self._untold_ticks = None, False, 0
        self.surroundings.checkers.started(self, replayed_after)
        newest = self.snapshots.newest()
        if newest is not None:
            self.member.snapshot_taken(newest)
        self.turn()

    def _config(self) -> Config:
        weather = self.weather
        introduction = self.introduction or Members((self.name,))
        config = Config(
            id=self.name,
            members=introduction.voters,
            learners=introduction.learners,
            append_bytes_max=weather.append_bytes_max,
            inflight_messages_max=weather.inflight_messages_max,
            inflight_bytes_max=weather.inflight_bytes_max,
            committed_bytes_max=weather.committed_bytes_max,
            applying_bytes_max=weather.applying_bytes_max,
        )
        return with_membership(config, self.store) if self.store.applied_index() else config

    def crash(self, *, power: bool, at: str = "any time") -> None:
        """The process dies; with `power` everything that was not synced may be lost."""
        if self.member is None:
            return
        self.surroundings.note(lambda: f"{self.name} {'loses power' if power else 'is killed'} ({at})")
        self.member.fail_all(Unavailable("The process died."))
        self._end(power=power)

    def lose_end(self, rand: random.Random) -> bool:
        """The disk of a machine that is down loses the end of its log, from an entry on that its database
        has applied, or from its last vote on. False if there is no such place in the last segment.
        """
        assert self.member is None, f"{self.name} runs"
        name = [name for name in self.directory.names() if name.endswith(form.SEGMENT_SUFFIX)][-1]
        row = self.database.connection.execute("SELECT log_index FROM applied").fetchone()
        places = []
        for record in form.read_records(self.directory.content(name), form.HEADER_BYTES):
            entry = form.decode_entry(record.payload) if record.kind == form.RecordKind.ENTRY else None
            if entry is not None and row is not None and entry.index <= row[0]:
                places.append(record.offset)
        if not places:
            return False
        self.directory.zero(name, rand.choice(places))
        self.has_lost = True
        self.surroundings.checkers.lost(self)
        return True

    @property
    def is_recovering(self) -> bool:
        """Whether it has lost something and is not known to have made it good."""
        if self.has_lost and self.member is not None and not self.member.status().recovering:
            self.has_lost = False
        return self.has_lost

    def _end(self, *, power: bool) -> None:
        self.epoch += 1
        self.member = self._ready = self.fetch = None
        self.snapshots.dies_in_install = False  # the process died before it
        if power:
            self.directory.crash()
            self.database.lose_power()
            self.snapshots.lose_power()
        else:
            self.directory.kill()

    # What comes in

    def tick(self) -> None:
        """A tick of this machine's clock."""
        if self.member is None:
            return
        self._untold_ticks += 1
        if self.fetch is not None:
            self.fetch.tick()
        if not self.sleeps or self._untold_ticks >= self.member.due_in_ticks:
            self._tell_time(self.member)
            self.turn()

    def pause(self) -> None:
        """A tick in which the process stands still."""
        self._untold_ticks += self.sleeps

    def _tell_time(self, member: RaftMember) -> None:
        """What passed beyond what the member asked for is dropped, as after a stall."""
        if ticks := min(self._untold_ticks, member.due_in_ticks):
            member.tick(ticks)
        self._untold_ticks = 0

    def receive(self, message: Message) -> None:
        """A message arrives."""
        if self.member is not None:
            self._tell_time(self.member)
            self.member.step(message)
            self.turn()

    def propose(self, data: bytes, waiter: Waiter) -> None:
        """A client's command arrives."""
        assert self.member is not None, f"{self.name} is down"
        self.member.propose(data, waiter)
        self.turn()

    def propose_membership(self, members: Members, payload: bytes, waiter: Waiter) -> None:
        """A change of membership arrives."""
        assert self.member is not None, f"{self.name} is down"
        self.member.propose_membership(members, payload, waiter)
        self.turn()

    def read(self, waiter: Waiter) -> None:
        """A client's read arrives."""
        assert self.member is not None, f"{self.name} is down"
        self.member.read(waiter)
        self.turn()

    # A turn

    def turn(self) -> None:
        """Begins turns until one has to wait for the disk, or there is nothing to do."""
        while self.member is not None and self._ready is None:
            self.surroundings.checkers.look(self)  # before a change of membership that this turn may bring
            ready = self.member.begin()
            if ready is None:
                break
            self._ready = ready
            if self._dies_at("with a new batch"):
                break
            self.surroundings.checkers.sends_now(self.name, ready.send_now)
            self.surroundings.send(self.name, ready.send_now)
            self._mind_snapshots(ready)
            if self.member.needs_disk(ready):
                if ready.committed and ready.snapshot is None:
                    self.member.hand_out(ready)
                    self._maybe_apply()
                self._later(self._persist, "writes")
                break
            self._finish()
        self._turn_meanwhile()
        self._look()

    def _turn_meanwhile(self) -> None:
        """What need not wait for the batch that is being written; a driver may leave it for later, too."""
        member, ready = self.member, self._ready
        if member is None or ready is None or ready.snapshot is not None or self.rand.random() < 0.5:
            return
        messages = member.messages_without_disk()
        self.surroundings.checkers.sends_now(self.name, messages)
        self.surroundings.send(self.name, messages)

    def _look(self) -> None:
        if self.member is not None:
            self.surroundings.checkers.look(self)

    def _later(self, step: Callable[[], None], name: str) -> None:
        self.surroundings.later(self, step, name)

    def _dies_at(self, boundary: str) -> bool:
        if not self.surroundings.dies_at(self, boundary):
            return False
        self.crash(power=self.rand.random() < self.weather.power_share, at=boundary)
        return True

    def _persist(self) -> None:
        ready, member = self._ready, self.member
        assert ready is not None, "a batch is written"
        assert member is not None, "a process writes it"
        dies = self.surroundings.dies_at(self, "in a write")
        if dies:
            self._break_disk()
            self.snapshots.dies_in_install = ready.snapshot is not None and self.rand.random() < 0.5
        self.surroundings.checkers.writes(self, ready)
        try:
            member.persist(ready)
            if dies:
                raise Crashed  # behind the last operation of the batch
        except Crashed:
            self.crash(power=self.rand.random() < self.weather.power_share, at="in a write")
            return
        self.surroundings.checkers.persisted(self, ready)
        if not self._dies_at("after a write"):
            self._finish()
            self.turn()

    def _break_disk(self) -> None:
        most = self.rand.choice((BATCH_OPERATIONS, DISK_OPERATIONS_MAX))
        self.directory.crash_after(self.rand.randint(1, most))

    def _finish(self) -> None:
        ready, member = self._ready, self.member
        assert ready is not None, "a batch ends"
        assert member is not None, "in a process"
        self.surroundings.checkers.promises(self, ready.send_after_sync)
        self.surroundings.send(self.name, ready.send_after_sync)
        if self._dies_at("after sending"):
            return
        member.finish(ready)
        self._ready = None
        self._maybe_apply()

    def _maybe_apply(self) -> None:
        if self.member is None:
            return
        entries = self.member.next_to_apply()
        if entries:
            self.surroundings.checkers.handed_out(self, entries)
            self.is_applying = True
            self._later(lambda: self._apply(entries), "applies")

    def _apply(self, entries: list[Entry]) -> None:
        assert self.member is not None, "a process applies"
        if self._dies_at("before applying"):
            return
        replies = self.member.apply(entries)
        self.database.committed()
        self.surroundings.checkers.applied(self, entries, replies)
        if not self._dies_at("after applying"):
            self._later(lambda: self._applied(entries, replies), "answers")

    def _applied(self, entries: list[Entry], replies: list[bytes]) -> None:
        assert self.member is not None, "a process answers"
        self.is_applying = False
        self.member.note_applied(entries, replies)
        self._maybe_apply()
        self.turn()

    # Snapshots and compaction

    def _mind_snapshots(self, ready: Ready) -> None:
        if ready.take_snapshot:
            self._later(self._take_snapshot, "copies its state")
        if ready.offer is not None and (self.fetch is None or self.fetch.meta != ready.offer.meta):
            self.fetch = Fetch(self, ready.offer)
            self.fetch.ask()

    def _take_snapshot(self) -> None:
        if self.member is not None:
            self.member.snapshot_taken(self.snapshots.take())
            self.turn()

    def fetched(self) -> None:
        """The snapshot that was fetched is whole."""
        assert self.member is not None, "a process fetches"
        assert self.fetch is not None, "something"
        self.member.note_fetched(self.fetch.meta)
        self.fetch = None
        self.turn()

    def keep_house(self) -> None:
        """A checkpoint of the database, and then compaction of the log below it."""
        if self.member is not None and not self.is_applying:
            self._tidy_snapshot()
            durable_index = self.database.checkpoint(self.store)
            self._later(lambda: self._compact(durable_index), "compacts its log")

    def _tidy_snapshot(self) -> None:
        """As the driver does: an old snapshot is made anew while it is fetched, and goes when it is not."""
        assert self.member is not None, "a process keeps house"
        if self.snapshots.newest() is None or self.rand.random() > TIDY_SHARE:
            return
        if self.member.is_fetched_from:
            self.member.snapshot_taken(self.snapshots.take())
        else:
            self.member.snapshot_gone()
            self.snapshots.forget_outgoing()

    def _compact(self, durable_index: int) -> None:
        if self.member is None or self._ready is not None:
            return  # the disk is busy: the next time
        forgotten = self.log.forget(self.member.compactable(durable_index))
        if forgotten.segments:
            self.surroundings.checkers.compacted(self)
            if self.surroundings.dies_at(self, "in compaction"):
                self._break_disk()
        try:
            self.log.discard(forgotten)
            if self.rand.random() < 0.3:
                self.log.prepare_spare()
        except Crashed:
            self.crash(power=True, at="in compaction")
        else:
            self.directory.is_armed = False
