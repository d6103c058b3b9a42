"""Whether this node reaches the others, asked now and then. Apart from their answers: a task of its own.

The heartbeats tell it. A node whose ports are closed by a firewall still sends its own heartbeats, and
looks well to the coordinators. When most of the others cannot reach it, nothing new is placed there and its
uploads go to others (`metadata.rpc.node_health`).
"""

import asyncio
from itertools import islice

from aiohttp import web

from ca.errors import FilestoreError
from metadata.rpc.view import View
from node.peer.client import PeerClient, PeerFailed
from runtime.background import Pause, Work

LOOK_S = 3.0
RETRY_S = 1.0  # while one does not answer, so that it is soon known to be back
LOOKS_MAX = 32  # at once: in larger clusters the others are looked at in turn
ANSWER_TIMEOUT_S = 3.0
FAILURES_MIN = 2  # in a row: one may be a restart
_PATH = "/reach"


class Reach:
    """The connectivity from one process to other nodes. `run` keeps checking."""

    def __init__(self, node_id: str, peers: PeerClient, view: View) -> None:
        self._node_id = node_id
        self._peers = peers
        self._view = view
        self._failures: dict[str, int] = {}  # in a row, by node; in the order of the last look

    def unreachable(self) -> list[str]:
        """Nodes that did not answer lately."""
        return sorted(node_id for node_id, count in self._failures.items() if count >= FAILURES_MIN)

    async def run(self) -> None:
        """Until cancelled."""
        await Work("ways to other nodes", self._look, first_s=LOOK_S).run()

    async def _look(self) -> Pause:
        await self.ask_oldest()
        return Pause(RETRY_S if self.unreachable() else LOOK_S)

    async def ask_oldest(self) -> None:
        """Ask those that were not asked for longest."""
        try:
            others = {node.node_id for node in self._view.current.nodes} - {self._node_id}
        except FilestoreError:
            return  # there is no view yet
        self._failures = {node_id: count for node_id, count in self._failures.items() if node_id in others}
        waiting = [*sorted(others - self._failures.keys()), *self._failures]
        await asyncio.gather(*map(self._ask, islice(waiting, LOOKS_MAX)))

    async def _ask(self, node_id: str) -> None:
        try:
            async with self._peers.ask(node_id, "HEAD", _PATH, within_s=ANSWER_TIMEOUT_S):
                failures = 0  # any response counts
        except PeerFailed:
            failures = self._failures.get(node_id, 0) + 1
        self._failures.pop(node_id, None)  # and to the end of the line
        self._failures[node_id] = failures


def reach_routes() -> list[web.RouteDef]:
    """Return the route for other nodes' checks."""
    return [web.head(_PATH, _here)]


async def _here(_: web.Request) -> web.Response:
    return web.Response(status=204)
