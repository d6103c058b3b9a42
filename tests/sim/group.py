"""A few cores in lock step, for transcripts: every message and every sync is moved by the test."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from coordinator.raft.core import Config, Raft
from coordinator.raft.messages import (
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    ReadState,
    Ready,
    SnapshotMeta,
    SnapshotOffer,
)
from tests.sim.memory_storage import MemoryStorage

STEPS_MAX = 10_000  # far more than any transcript needs: a loop that does not end is a failure


def nothing(_message: Message) -> bool:
    """No message is lost."""
    return False


class Member:
    """One core with its disk.

    `begin` and `finish` are the two halves of the driver's turn; a crash may fall between.
    """

    def __init__(self, config: Config, entries: Sequence[Entry], hard_state: HardState, seed: int) -> None:
        self.config = config
        self.storage = MemoryStorage(entries)
        self.hard_state = hard_state
        self.applied: list[Entry] = []
        self.read_states: list[ReadState] = []
        self.reads_refused: list[bytes] = []
        self.installed: SnapshotMeta | None = None
        self.offer: SnapshotOffer | None = None
        self.is_asked_for_snapshot = False
        self._rand = random.Random(seed)
        self._ready: Ready | None = None
        self.raft = Raft(config, self.storage, hard_state, 0, self._rand)

    def begin(self) -> list[Message]:
        """Takes a Ready; what may leave before the sync."""
        self._ready = self.raft.ready()
        return self._ready.send_now

    def finish(self) -> list[Message]:
        """Persists, applies and advances; what may leave after the sync."""
        ready, self._ready = self._ready, None
        assert ready is not None, "finish without begin"
        self.hard_state = ready.hard_state or self.hard_state
        if ready.snapshot is not None:
            self.storage.reset(ready.snapshot.index, ready.snapshot.term)
            self.installed = ready.snapshot
        self.storage.append(ready.truncate_from, ready.entries)
        self.applied += ready.committed
        self.offer = ready.offer or self.offer
        self.is_asked_for_snapshot |= ready.take_snapshot
        self.read_states += ready.read_states
        self.reads_refused += ready.reads_refused
        self.raft.advance(ready)
        if ready.committed:
            self.raft.note_applied(ready.committed[-1].index)
        return ready.send_after_sync

    def turn(self) -> list[Message]:
        """All turns that the core asks for; what leaves."""
        sent: list[Message] = []
        for _ in range(STEPS_MAX):
            if not self.raft.has_ready():
                return sent
            sent += self.begin()
            sent += self.finish()
        raise AssertionError("the core never comes to rest")

    def restart(self) -> None:
        """The process dies and comes back with what its disk holds."""
        self._ready = None
        self.applied = []
        self.raft = Raft(
            self.config, self.storage, self.hard_state, self.storage.first_index() - 1, self._rand
        )

    def log(self) -> list[tuple[int, bytes]]:
        """Term and data of every entry on disk."""
        first, last = self.storage.first_index(), self.storage.last_index()
        entries = self.storage.entries(first, last + 1, 1 << 40) if last >= first else []
        return [(entry.term, entry.data) for entry in entries]


def make_member(
    name: str,
    names: Sequence[str],
    terms: Sequence[int] = (),
    *,
    term: int = 0,
    vote: str = "",
    commit: int = 0,
    founders: Sequence[str] = (),
    **bounds: Any,
) -> Member:
    """A member whose log holds one entry of each of the given terms, with data naming index and term.

    The group is `names`, or `founders` if these are given.
    """
    entries = [Entry(i, t, EntryKind.COMMAND, f"{i}@{t}".encode()) for i, t in enumerate(terms, 1)]
    hard_state = HardState(max([term, *terms]), vote, commit)
    config = Config(id=name, members=tuple(founders or names), **bounds)
    return Member(config, entries, hard_state, seed=names.index(name))


class Group:
    """Members joined by links that the test cuts and mends."""

    def __init__(self, *members: Member) -> None:
        self.members = {member.config.id: member for member in members}
        self.cut: set[str] = set()
        self.dropped: Callable[[Message], bool] = nothing

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    def settle(self) -> list[Message]:
        """Delivers messages until none is left, and returns all that were sent.

        Cut members neither send nor receive.
        """
        sent: list[Message] = []
        for _ in range(STEPS_MAX):
            batch = [
                m for name, member in self.members.items() if name not in self.cut for m in member.turn()
            ]
            if not batch:
                return sent
            sent += batch
            for message in batch:
                is_cut = (
                    bool({message.source, message.target} & self.cut) or message.target not in self.members
                )
                if not is_cut and not self.dropped(message):
                    self.members[message.target].raft.step(message)
        raise AssertionError("the group never comes to rest")

    def elect(self, name: str) -> Member:
        """Lets `name` win an election; the others first forget their leader by waiting long enough."""
        for other, member in self.members.items():
            if other != name and other not in self.cut:
                for _ in range(member.config.election_ticks):
                    member.raft.tick()
                    member.turn()  # a pre-vote that starts here is lost
                    if member.raft.leader == "":
                        break
        self[name].raft.campaign()
        self.settle()
        assert self[name].raft.leader == name, f"{name} was not elected"
        return self[name]

    def tick(self, count: int = 1) -> list[Message]:
        """Everyone's clock moves, one tick at a time, and all messages arrive in between."""
        sent: list[Message] = []
        for _ in range(count):
            for name, member in self.members.items():
                member.raft.tick()
                if name in self.cut:
                    member.turn()
            sent += self.settle()
        return sent


def make_group(count: int = 3, **bounds: Any) -> Group:
    """Members a, b, c ... with empty logs."""
    names = "abcdefg"[:count]
    return Group(*(make_member(name, names, **bounds) for name in names))


def kinds(messages: Sequence[Message]) -> list[MessageKind]:
    """The kinds of these messages, in order."""
    return [message.kind for message in messages]
