"""gc stops to ask where too much would go at once, and goes on where nobody has answered for a week.

The real state machine, and in the place of nodes what they are told.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest

from ca.errors import Conflict
from coordinator.reconcile.context import ReconcileContext
from coordinator.reconcile.passes import gc
from coordinator.rpc.node_client import PassState
from metadata.model.jobs import JobParameters
from metadata.protocol.commands import AnyCommand
from metadata.protocol.queries import AnyQuery
from tests.unit import replica_acts as acts
from tests.unit.state import HOUR_MS, State

NODES = ("n1", "n2", "n3")
DAY_MS = 24 * HOUR_MS
BLOBS = 101  # more than may go without a question

_T = TypeVar("_T")


class Leader:
    """As much of a leader as gc works with: its log, its nodes, and the progress of the run."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.store = state.store
        self.orders = self
        self.grace_ms = DAY_MS
        self.doubt = ""
        self.told: list[tuple[str, bool]] = []
        self.run_id, self.parameters = "r1", JobParameters()
        self.result: dict[str, int] = {}

    async def apply(self, command: AnyCommand, reply_type: type[_T]) -> _T:
        if self.doubt:
            raise Conflict(self.doubt)
        return msgspec.convert(self.state.done(command), type=reply_type)

    async def ask(self, query: AnyQuery, answer_type: type[_T]) -> _T:
        return msgspec.convert(self.state.ask(query), type=answer_type, strict=False)

    def clock_doubt(self) -> str:
        return self.doubt

    def node(self, node_id: str) -> str:
        return node_id

    async def custody(self, node: str, kind: str, order_id: str, *, yes_really: bool = False) -> PassState:
        assert kind == "collect"
        self.told.append((node, yes_really))
        return PassState(order_id=order_id, state="completed")

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.result[name] = self.result.get(name, 0) + count

    async def note(self) -> None:
        """Nobody looks."""

    async def gc(self) -> None:
        self.told.clear()
        await gc(cast(ReconcileContext, self), cast(Any, self))


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    """Of a cluster in which nothing is stored any more: it was all deleted."""
    state = State(tmp_path / "state.sqlite")
    state.nodes(*NODES)
    for number in range(BLOBS):
        acts.put(state, f"f{number}", f"b{number:03}", *NODES)
        acts.delete(state, f"f{number}")
    yield Leader(state)
    state.store.close()


async def test_gc_stops_to_ask_and_goes_on_after_a_week_without_an_answer(leader: Leader) -> None:
    for days in (1, 3, 7):
        leader.state.at_ms = days * DAY_MS + 2_000_000
        with pytest.raises(Conflict, match="would be removed"):
            await leader.gc()
        assert (acts.doomed(leader.state, "n1"), leader.told) == ([], [])
    leader.state.at_ms += DAY_MS
    await leader.gc()
    assert len(acts.doomed(leader.state, "n1")) == BLOBS
    assert leader.told == [(node_id, True) for node_id in NODES]  # nodes ask no more either


async def test_what_is_overdue_does_not_take_along_what_is_not(leader: Leader) -> None:
    leader.state.at_ms += 8 * DAY_MS
    for number in range(BLOBS):
        acts.put(leader.state, f"g{number}", f"c{number:03}", *NODES)
        acts.delete(leader.state, f"g{number}")
    leader.state.at_ms += 2 * DAY_MS
    with pytest.raises(Conflict, match="would be removed"):
        await leader.gc()
    assert acts.doomed(leader.state, "n1") == [f"b{number:03}" for number in range(BLOBS)]
    assert leader.told == [(node_id, True) for node_id in NODES]


async def test_wrong_clock_gives_nobody_an_answer(leader: Leader) -> None:
    leader.state.at_ms += 30 * DAY_MS
    leader.doubt = "The clock is ahead."
    with pytest.raises(Conflict, match="ahead"):
        await leader.gc()
    assert (acts.doomed(leader.state, "n1"), leader.told) == ([], [])
