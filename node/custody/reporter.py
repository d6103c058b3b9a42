"""Report this node's replicas to the log, one report after the other.

A report that may not have arrived is sent again, the same, until it is answered: no list of replicas to
delete is read before. A process begins with an empty report, whose answer says that no report of an earlier
process can come any more.

Tested by tests/unit/node/custody/test_custody.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, TypeVar

from ca.errors import Conflict, NotFound, Unavailable
from metadata.model.replica_records import DeletionPage, Dropped, Lost
from metadata.protocol.commands import AddReplica, AnyCommand, ReportDropped, ReportLost
from metadata.protocol.queries import ListReplicasToDelete
from metadata.rpc.client import MetadataClient
from node.storage.loss_notes import Reason

RETRY_S: Final = 1.0  # before a report is sent again
FENCE_TRIES_MAX: Final = 10  # other reports of this node that come between: there is one process

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Reporter:
    """The reports of one node, in order. For one event loop."""

    def __init__(self, node_id: str, metadata: MetadataClient) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._turn = asyncio.Lock()
        self._is_fenced = False

    async def to_delete(self, *, after: str, limit: int) -> DeletionPage:
        """Return the replicas to delete, after every earlier report was answered. Raises FilestoreError."""
        async with self._turn:
            if not self._is_fenced:
                await self._fence()
            return await self._list(after=after, limit=limit)

    async def report_dropped(self, as_of: int, *, dropped: Sequence[str], spared: Sequence[str]) -> Dropped:
        """Report what was done with a list. Raises Conflict if the log has a newer list."""
        command = ReportDropped(
            node_id=self._node_id, as_of=as_of, dropped=list(dropped), spared=list(spared)
        )
        async with self._turn:
            return await self._send(command, Dropped)

    async def report_lost(self, sha256s: Sequence[str], reason: Reason) -> Lost:
        """Report replicas that are not here. Raises NotFound if the node is no longer a member."""
        async with self._turn:
            command = ReportLost(node_id=self._node_id, sha256s=list(sha256s), reason=reason)
            return await self._send(command, Lost)

    async def add(self, sha256: str, as_of: int) -> bool:
        """Report that a blob was here after `as_of` was known; return False if the log refuses."""
        command = AddReplica(sha256=sha256, node_id=self._node_id, as_of=as_of)
        try:
            await self._metadata.propose(command, int)
        except (NotFound, Unavailable) as refusal:
            facts = {"sha256": sha256, "reason": refusal.details}
            _log.info("a replica on this disk was not recorded", extra=facts)
            return False
        return True

    async def _fence(self) -> None:
        for _ in range(FENCE_TRIES_MAX):
            page = await self._list(after="", limit=1)
            try:
                await self._send(ReportDropped(node_id=self._node_id, as_of=page.log_index), Dropped)
            except Conflict:  # of an earlier process, on its way until now
                continue
            self._is_fenced = True
            return
        raise Unavailable("Other reports of this node interfere.")

    async def _list(self, *, after: str, limit: int) -> DeletionPage:
        query = ListReplicasToDelete(node_id=self._node_id, after=after, limit=limit)
        return await self._metadata.read(query, DeletionPage)

    async def _send(self, command: AnyCommand, reply_type: type[_T]) -> _T:
        while True:
            try:
                return await self._metadata.propose(command, reply_type)
            except Unavailable as error:
                _log.warning("a report was not answered", extra={"reason": error.details})
            await asyncio.sleep(RETRY_S)
