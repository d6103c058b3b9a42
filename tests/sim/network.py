"""A seeded simulator: N cores, their disks and the network between them, with checkers after every step.

Everything random comes from one seed. The disk loses what was not synced (keeping any prefix of it, so that
batches are torn); the network drops, doubles, delays and reorders messages, and cuts members off; a crash may
fall between any two halves of the driver's turn; a state machine comes back older than the log. Checked: one
leader per term, log matching, leader completeness, nothing committed is lost, changed, or committed before a
majority has it on disk, reads are linearizable.
"""

import heapq
import random
from dataclasses import dataclass, field

import msgspec

from coordinator.raft.core import Config, NotLeader, ProposalRefused, Raft, Role
from coordinator.raft.messages import Entry, HardState, Message, Ready
from coordinator.raft.storage import MemoryStorage

REPLAY = "replay with: python -m tests.sim.network {seed}"
STEPS = 12_000  # each moves a clock, a message, a disk or a client
IN_FLIGHT_MAX = 2000  # messages on the simulated network; more are dropped
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Message)


class Violation(AssertionError):
    """A promise of the protocol was broken."""


@dataclass(slots=True)
class Disk:
    """What survives a crash, and what may."""

    entries: list[Entry] = field(default_factory=list)
    hard_state: HardState = field(default_factory=HardState)
    unsynced: list[HardState | int | Entry] = field(
        default_factory=list
    )  # records in the order of their batches

    def write(self, ready: Ready) -> None:
        """One batch: hard state, truncation, entries."""
        self.unsynced += [ready.hard_state] if ready.hard_state is not None else []
        self.unsynced += [ready.truncate_from] if ready.truncate_from is not None else []
        self.unsynced += ready.entries

    def sync(self, keep: int | None = None) -> None:
        """Makes the first `keep` unsynced records durable (all by default) and forgets the rest."""
        for record in self.unsynced[:keep]:
            if isinstance(record, HardState):
                self.hard_state = record
            elif isinstance(record, int):
                del self.entries[record - 1 :]
            else:
                self.entries.append(record)
        self.unsynced.clear()


@dataclass(slots=True)
class Node:
    """One member: its disk outlives it, its core does not."""

    name: str
    disk: Disk = field(default_factory=Disk)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    raft: Raft | None = None  # None while it is down
    writing: Ready | None = None
    applied: int = 0


class Simulation:
    """One run. `run` raises Violation with the seed and the command that replays it."""

    def __init__(self, seed: int, *, members: int | None = None, steps: int = STEPS) -> None:
        self.seed = seed
        self.rand = random.Random(seed)
        self.steps = steps
        count = members or self.rand.choice((1, 2, 3, 3, 4, 5, 5))
        self.names = tuple(f"m{number}" for number in range(count))
        self.nodes = {name: Node(name) for name in self.names}
        self.network: list[tuple[int, int, bytes]] = []  # (due step, tie-break, encoded message)
        self.now = 0
        self.sent = 0
        self.islands: set[str] = set()  # members on one side of a partition
        self.calm = False
        self.leaders: dict[int, str] = {}  # by term
        self.seen: dict[tuple[int, int], tuple[bytes, int]] = {}  # (index, term): data and the term before it
        self.committed: list[Entry] = []
        self.reads: dict[
            bytes, int
        ] = {}  # context: the highest index that anyone had applied when it was asked
        self.reads_served = 0
        self.drop = self.rand.choice((0.0, 0.02, 0.15))
        self.double = self.rand.choice((0.0, 0.1))
        self.delay_max = self.rand.choice((1, 20, 60))
        for name in self.names:
            self.start(name)

    def run(self) -> "Simulation":
        """Storm, then calm: in the calm a leader must emerge, and a proposal commit on every member."""
        try:
            for _ in range(self.steps):
                self.step()
            self._settle()
        except (Violation, AssertionError) as error:
            raise Violation(
                f"seed {self.seed}, step {self.now}: {error}; {REPLAY.format(seed=self.seed)}"
            ) from error
        return self

    def step(self) -> None:
        """One random event, and all messages that are due."""
        self.now += 1
        node = self.nodes[self.rand.choice(self.names)]
        dice = self.rand.random()
        if node.raft is None:
            if dice < 0.05 or self.calm:
                self.start(node.name)
        elif dice < 0.30:
            node.raft.tick()
        elif dice < 0.40:
            self.propose(node)
        elif dice < 0.45:
            self.ask(node)
        elif dice < 0.453 and not self.calm:
            self.crash(node)
        elif dice < 0.456 and not self.calm:
            self.islands = set(self.rand.sample(self.names, self.rand.randrange(len(self.names) + 1)))
        elif dice < 0.458 and node.raft.status().role is Role.LEADER and len(self.names) > 1:
            node.raft.transfer_leader(self.rand.choice([name for name in self.names if name != node.name]))
        else:
            self.drive(node)
        while self.network and self.network[0][0] <= self.now:
            self.deliver(_DECODER.decode(heapq.heappop(self.network)[2]))
        self.check_leaders()

    def start(self, name: str) -> None:
        """A process comes up with what its disk kept; its state machine may be older than its log."""
        node = self.nodes[name]
        disk = node.disk
        node.storage = MemoryStorage(disk.entries)
        node.applied = self.rand.randint(0, min(node.applied, len(disk.entries)))
        others = {"append_bytes_max": self.rand.choice((1, 200, 4096)), "inflight_messages_max": 4}
        config = Config(
            id=name, members=self.names, committed_bytes_max=self.rand.choice((1, 4096)), **others
        )
        rand = random.Random(self.rand.getrandbits(64))
        node.raft = Raft(config, node.storage, disk.hard_state, node.applied, rand)

    def crash(self, node: Node) -> None:
        """The power goes: of what was not synced, any prefix of records may have reached the disk."""
        node.disk.sync(keep=self.rand.randint(0, len(node.disk.unsynced)))
        node.raft = node.writing = None

    def propose(self, node: Node) -> None:
        """A client's command, or a few at once."""
        assert node.raft is not None
        datas = [self.rand.randbytes(self.rand.randrange(60)) for _ in range(self.rand.randint(1, 4))]
        try:
            node.raft.propose(datas)
        except (NotLeader, ProposalRefused):
            return

    def ask(self, node: Node) -> None:
        """A client's read: it must see all that anyone could have seen before it was asked."""
        assert node.raft is not None
        context = len(self.reads).to_bytes(4, "big") + node.name.encode()
        self.reads[context] = len(self.committed)
        node.raft.read_index(context)

    def drive(self, node: Node) -> None:
        """Half a driver's turn: begin a batch, or finish the one that is being written."""
        assert node.raft is not None
        if node.writing is None:
            if node.raft.has_ready():
                node.writing = ready = node.raft.ready()
                self.send(ready.send_now)
                node.disk.write(ready)
            return
        ready, node.writing = node.writing, None
        if ready.must_sync:
            node.disk.sync()
        node.storage.append(ready.truncate_from, ready.entries)
        self.check_matching(node, ready.entries)
        self.send(ready.send_after_sync)
        for entry in ready.committed:
            self.apply(node, entry)
        self.serve(node, ready)
        node.raft.advance(ready)

    def serve(self, node: Node, ready: Ready) -> None:
        """Reads are answered once their index is applied."""
        for state in ready.read_states:
            floor = self.reads[state.context]
            if state.index < floor:
                raise Violation(
                    f"{node.name} reads at {state.index}, but {floor} was visible when it was asked"
                )
            self.reads_served += 1

    def send(self, messages: list[Message]) -> None:
        """Puts messages on the network: some get lost, some come twice, all take their own time."""
        for message in messages:
            for _ in range(2 if self.rand.random() < self.double else 1):
                if self.rand.random() >= self.drop and len(self.network) < IN_FLIGHT_MAX:
                    self.sent += 1
                    due = self.now + self.rand.randint(1, self.delay_max)
                    heapq.heappush(self.network, (due, self.sent, _ENCODER.encode(message)))

    def deliver(self, message: Message) -> None:
        """A message arrives unless its target is down or on the other side."""
        target = self.nodes[message.target]
        if target.raft is not None and (message.source in self.islands) == (message.target in self.islands):
            target.raft.step(message)

    def apply(self, node: Node, entry: Entry) -> None:
        """The state machine takes an entry: the same one as everywhere, in order, on a majority's disks."""
        if entry.index != node.applied + 1:
            raise Violation(f"{node.name} applies {entry.index} after {node.applied}")
        node.applied = entry.index
        if entry.index <= len(self.committed):
            if self.committed[entry.index - 1] != entry:
                raise Violation(f"{node.name} commits another entry at {entry.index}")
            return
        holders = sum(self.has_on_disk(each, entry) for each in self.nodes.values())
        if holders <= len(self.names) // 2:
            raise Violation(f"entry {entry.index} is committed, but only {holders} disks have it")
        self.committed.append(entry)

    def has_on_disk(self, node: Node, entry: Entry) -> bool:
        """True if a crash right now would leave this entry on the node's disk."""
        entries = node.disk.entries
        return len(entries) >= entry.index and entries[entry.index - 1] == entry

    def check_matching(self, node: Node, entries: list[Entry]) -> None:
        """Log matching: index and term name one entry, and one entry before it."""
        for entry in entries:
            now = (entry.data, node.storage.term(entry.index - 1))
            if self.seen.setdefault((entry.index, entry.term), now) != now:
                raise Violation(f"two entries have index {entry.index} and term {entry.term}")

    def check_leaders(self) -> None:
        """One leader per term, and each new one has all that was committed (leader completeness)."""
        for node in self.nodes.values():
            status = node.raft.status() if node.raft is not None else None
            if status is None or status.role is not Role.LEADER or self.leaders.get(status.term) == node.name:
                continue
            if status.term in self.leaders:
                raise Violation(f"{node.name} and {self.leaders[status.term]} both lead term {status.term}")
            self.leaders[status.term] = node.name
            older = [entry for entry in self.committed if entry.term < status.term]
            if not all(self.has_on_disk(node, entry) for entry in older):
                raise Violation(f"{node.name} leads term {status.term} without all committed entries")

    def _settle(self) -> None:
        self.calm, self.islands, self.drop, self.delay_max = True, set(), 0.0, 1
        target = len(self.committed) + 1
        for _ in range(20 * self.steps):
            self.step()
            if all(node.raft is not None and node.applied > target for node in self.nodes.values()):
                return
        raise Violation(
            f"no progress in the calm: {[node.applied for node in self.nodes.values()]} of {target}"
        )


if __name__ == "__main__":
    import sys

    for argument in sys.argv[1:]:
        done = Simulation(int(argument)).run()
        facts = f"{len(done.committed)} committed, {len(done.leaders)} terms, {done.reads_served} reads"
        print(f"seed {argument}: {facts}")
