"""The core's view of its log against a plain list, whatever is written and overwritten meanwhile."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.raft.log_view import LogView
from coordinator.raft.membership import MembershipHistory
from coordinator.raft.messages import Entry, EntryKind, Members
from tests.sim.memory_storage import MemoryStorage

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["append", "overwrite", "write", "confirm", "commit"]), st.integers(0, 7)),
    max_size=40,
)


def view(storage: MemoryStorage) -> LogView:
    memberships = MembershipHistory("a", Members(("a",)))
    return LogView(storage, commit=0, applied=0, memberships=memberships)


@dataclass
class Run:
    """A log view, its disk, and the list that it must equal."""

    storage: MemoryStorage = field(default_factory=MemoryStorage)
    model: list[Entry] = field(default_factory=list)
    term: int = 1
    batch: tuple[int | None, list[Entry]] | None = None

    def __post_init__(self) -> None:
        self.log = view(self.storage)

    def do(self, action: str, number: int) -> None:
        if action == "append":
            new = [
                Entry(len(self.model) + 1 + i, self.term, EntryKind.COMMAND, b"") for i in range(number + 1)
            ]
            self.log.append(new)
            self.model += new
        elif action == "overwrite":
            self.term += 1
            previous = max(len(self.model) - number, self.log.commit)
            new = [Entry(previous + 1 + i, self.term, EntryKind.COMMAND, b"") for i in range(number + 1)]
            self.log.merge(previous, new)
            self.model[previous:] = new
        elif action == "write" and self.batch is None:
            self.batch = self.log.take_batch()
        elif action == "confirm" and self.batch is not None:
            self.storage.append(*self.batch)
            self.log.batch_written()
            self.batch = None
        elif action == "commit":
            self.log.commit_to(min(self.log.commit + number, self.log.last_index))

    def read(self) -> list[Entry]:
        found: list[Entry] = []
        while len(found) < self.log.last_index:
            found += self.log.entries(len(found) + 1, self.log.last_index + 1, 100)
        return found


@settings(max_examples=200, deadline=None)
@given(ACTIONS)
def test_log_view_equals_a_list(actions: list[tuple[str, int]]) -> None:
    run = Run()
    for action, number in actions:
        run.do(action, number)

        assert run.read() == run.model
        stable = run.log.stable_last
        assert run.model[:stable] == (run.storage.entries(1, stable + 1, 1 << 40) if stable else [])
    for action in ("confirm", "write", "confirm"):
        run.do(action, 0)
    assert run.log.stable_last == len(run.model)


@given(st.lists(st.integers(1, 4), max_size=12).map(sorted), st.integers(0, 14), st.integers(0, 5))
def test_back_off_finds_the_last_index_within_a_term(terms: list[int], index: int, term: int) -> None:
    entries = [Entry(i, t, EntryKind.COMMAND, b"") for i, t in enumerate(terms, 1)]
    log = view(MemoryStorage(entries))

    found = log.last_index_within_term(index, term)

    assert found == max([0, *(i for i, t in enumerate(terms, 1) if i <= index and t <= term)])
