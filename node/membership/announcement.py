"""A node tells the cluster where it is, and which process speaks for it. Apart: a task of its own.

`coordinator/admission.py` says what the latter is for.

Tested by tests/cluster/test_members.py.
"""

import asyncio

from ca.errors import Unavailable
from metadata.model.records import NodeRecord
from metadata.protocol.commands import AnnounceNode
from metadata.rpc.client import MetadataClient
from metadata.rpc.view import View
from node.base.config import NodeConfig
from node.base.instance import Start
from runtime.background import Pause, Work

RETRY_S = 1.0
SHOWN_S = 3.0  # until the view shows it


class Announcement:
    """Announces a node, in worker 0, and tells every worker whether that is done."""

    def __init__(self, config: NodeConfig, metadata: MetadataClient, view: View, start: Start) -> None:
        self._config = config
        self._metadata = metadata
        self._view = view
        self._start = start
        self._done = asyncio.Event()

    def require(self) -> None:
        """Raises Unavailable while the view does not show it."""
        known = self._view.node(self._config.id)
        if known is None or not self._tells_place(known):
            raise Unavailable("The cluster does not know the address of this node yet.")
        if not self._tells_speaker(known) and known.speaker:
            if self._start.ended_predecessor(known.speaker):
                raise Unavailable("The cluster does not know the restart of this node yet.")
            raise Unavailable("Another process acts as this node. See `filestore status`.")

    async def wait_until_done(self) -> None:
        """Return when the node is announced to the cluster."""
        await self._done.wait()

    async def run(self) -> None:
        """Tell it whenever the cluster knows otherwise."""
        trouble = "the cluster rejects this node's address"
        await Work("announcement", self._tell, every_s=RETRY_S, trouble=trouble).run()

    async def _tell(self) -> Pause | None:
        await self._view.wait_until_fresh()
        known = self._view.node(self._config.id)
        if known is not None and self._tells_place(known) and self._tells_speaker(known):
            self._done.set()
            return Pause(SHOWN_S)
        await self._metadata.propose(self._command(known), NodeRecord)
        self._done.set()
        return Pause(SHOWN_S)

    def _command(self, known: NodeRecord | None) -> AnnounceNode:
        return AnnounceNode(
            node_id=self._config.id,
            peer_port=self._config.peer_port,
            zone=self._config.zone,
            weight=self._config.weight,
            instance=self._start.instance,
            succeeds=self._start.ended_predecessor("" if known is None else known.speaker),
        )

    def _tells_place(self, known: NodeRecord) -> bool:
        told = (self._config.peer_port, self._config.zone, self._config.weight)
        return (known.peer_port, known.zone, known.weight) == told

    def _tells_speaker(self, known: NodeRecord) -> bool:
        return not self._start.instance or known.speaker == self._start.instance
