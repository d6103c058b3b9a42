"""The common objects of all parts of custody, and the limits at which a pass must stop.

Tested by tests/unit/node/custody/test_custody.py.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ca.errors import Unavailable
from metadata.model.replica_records import KnownReplica, NodeReplicas
from metadata.model.safety_limits import SAFETY_SHARE_MAX, is_too_many
from metadata.protocol.queries import GetNodeReplicas, KnownReplicas
from metadata.rpc.client import MetadataClient
from metadata.rpc.view import View
from node.base.metrics import NodeMetrics
from node.diskio.executor import DiskWorkers
from node.peer.rate_budget import Budget
from node.storage.blobs import BlobStore
from node.storage.pins import is_within
from node.storage.quarantine import Quarantine
from runtime.audit import AuditLog
from runtime.logs import LastingTroubles

PAGE_BLOBS: Final = 200  # in one question, report or job for the disk's threads

_TROUBLES = LastingTroubles(logging.getLogger(__name__))


class Stopped(Exception):
    """A pass stops at the safety limit; the text gives the reason and what an operator can do."""


class Superseded(Exception):
    """An order for the same work has arrived: the scheduled pass ends, and the order's begins."""


def _never() -> bool:
    return False


@dataclass(slots=True)
class Pass:
    """One pass over a node's replicas: its parameters, and its counts so far.

    `is_superseded` is called during long reads.
    """

    yes_really: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    is_superseded: Callable[[], bool] = _never

    def require_current(self) -> None:
        """Raises Superseded when it shall not go on."""
        if self.is_superseded():
            raise Superseded

    def add(self, **counts: int) -> None:
        """Count on."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count

    def require_few(self, count: int, of: int, what: str) -> None:
        """Raise Stopped if this number of the node's blobs exceeds the safety limit."""
        if not self.yes_really and is_too_many(count, of):
            raise Stopped(
                f"{count} of {of} blobs on this node {what}, which is more than the limit of "
                f"{SAFETY_SHARE_MAX:.0%} at once. If that is what you expect, run the job again with "
                "yes_really."
            )


@dataclass(frozen=True, slots=True)
class CustodyContext:
    """The log, the disk and the bounds of one node. `clock_s`: seconds since the epoch."""

    node_id: str
    metadata: MetadataClient
    view: View
    blobs: BlobStore
    disk: DiskWorkers
    metrics: NodeMetrics
    housekeeping: AuditLog
    budget: Budget
    clock_s: Callable[[], float] = time.time

    def kept_s(self) -> float:
        """Return the time that does not jump with the clocks of all members; our clock's if it is unknown."""
        kept_ms = self.view.kept_ms()
        return self.clock_s() if kept_ms is None else kept_ms / 1000

    def is_affirmed(self, sha256: str, period_s: float) -> bool:
        """Return whether the blob came or was affirmed in this period by our clock or the kept time."""
        clocks_s = self.clock_s(), self.kept_s()
        return any(is_within(self.blobs, sha256, period_s, at_s=at_s) for at_s in clocks_s)

    @property
    def quarantine(self) -> Quarantine:
        """Return the quarantine, which has the blobs that are out of service."""
        return Quarantine(self.blobs)

    @property
    def is_draining(self) -> bool:
        """Whether this node is to lose all it has."""
        known = self.view.node(self.node_id)
        return known is not None and known.draining

    async def replicas(self) -> NodeReplicas:
        """How much the log names this node for."""
        return await self.metadata.read(GetNodeReplicas(node_id=self.node_id), NodeReplicas)

    async def states_in_log(self, sha256s: list[str]) -> dict[str, str]:
        """Return the log's state of these blobs on this node, without unknown ones."""
        return {sha256: replica.state for sha256, replica in (await self.known_replicas(sha256s)).items()}

    async def known_replicas(self, sha256s: list[str]) -> dict[str, KnownReplica]:
        """Return the log's full entries of these blobs on this node."""
        query = KnownReplicas(node_id=self.node_id, sha256s=sha256s)
        answer = await self.metadata.read(query, list[KnownReplica])
        return {replica.sha256: replica for replica in answer}

    def record(self, action: str, sha256: str, outcome: str) -> None:
        """Write a line to the log of the node's own actions.

        If the disk cannot store it, the action is done nevertheless, as it may free space.
        """
        principal = f"node {self.node_id}"
        try:
            self.housekeeping.record(
                action, principal=principal, object=sha256, outcome=outcome, request_id=""
            )
        except Unavailable as error:
            _TROUBLES.note(
                "an action is missing in housekeeping.log", error.details, action=action, sha256=sha256
            )
