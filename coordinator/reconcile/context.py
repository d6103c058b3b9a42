"""The common objects of one coordinator's reconcilers.

Tested by tests/unit/coordinator/reconcile/test_rounds.py.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from ca.errors import NotFound, Unavailable
from coordinator.member.driver import Driver
from coordinator.member.member_clocks import MemberClocks
from coordinator.reconcile.backoff import CopyFailures
from coordinator.reconcile.facts import Facts
from coordinator.reconcile.job_runs import Interrupted
from coordinator.rpc.node_client import NodeOrders
from coordinator.rpc.server import value_of
from coordinator.storage.state_store import Store
from metadata.model.records import BlobRecord, ClusterView, NodeRecord
from metadata.model.safety_limits import clock_doubt
from metadata.protocol.calls import CALL_TIMEOUT_S
from metadata.protocol.queries import AnyQuery, CountCollectable, FindBlob
from metadata.rpc.node_health import NodeHealth

_T = TypeVar("_T")
_MAYBE_BLOB: type[BlobRecord | None] = BlobRecord | None  # type: ignore[assignment]  # msgspec takes unions


@dataclass(frozen=True, slots=True)
class ReconcileContext:
    """The parts of this coordinator that its reconcilers depend on.

    `grace_ms`: how long a blob without files is kept; `failures`: of the copies that were made since it runs.
    """

    driver: Driver
    store: Store
    view: Callable[[], ClusterView]
    health: NodeHealth
    orders: NodeOrders
    clocks: MemberClocks
    grace_ms: int
    failures: CopyFailures = field(default_factory=CopyFailures)

    def facts(self) -> Facts:
        """Return the cluster as this coordinator has applied it, and as heartbeats show it."""
        view, at_s = self.view(), time.monotonic()
        return Facts(
            nodes=tuple(view.nodes),
            candidates=tuple(self.health.candidates(view.nodes, at_s=at_s)),
            reachable=self.health.reachable(at_s=at_s).intersection(n.node_id for n in view.nodes),
            replicas=view.replicas,
            write_quorum=view.write_quorum,
        )

    def clock_doubt(self) -> str:
        """Return why no record may expire now; "" without a reason."""
        if self.view().nodes and self.health.is_silent():
            return "No node has reported its time to this coordinator yet."
        return clock_doubt(self.clocks.offsets_ms())

    def node(self, node_id: str) -> NodeRecord:
        """Return the node. Raises NotFound."""
        for node in self.view().nodes:
            if node.node_id == node_id:
                return node
        raise NotFound(f"No such node: {node_id}.")

    def blob(self, sha256: str) -> BlobRecord | None:
        """Return a blob that files refer to, as this coordinator has applied it."""
        return self.ask_applied(FindBlob(sha256=sha256), _MAYBE_BLOB)

    async def ask(self, query: AnyQuery, answer_type: type[_T]) -> _T:
        """Query the log, including everything that was committed before. Raises Interrupted."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self.driver.read_barrier()
        except (Unavailable, TimeoutError) as error:
            raise Interrupted("no majority answers") from error
        return self.ask_applied(query, answer_type)

    def ask_applied(self, query: AnyQuery, answer_type: type[_T]) -> _T:
        """Query the applied state: for decisions that a command checks again, at the time that dates it."""
        is_ending = isinstance(query, CountCollectable)
        reply = self.store.answer(query, at_ms=self.clocks.ending_ms() if is_ending else self.clocks.now_ms())
        return msgspec.msgpack.decode(value_of(reply), type=answer_type)
