"""Peers that did not answer lately, so that nobody waits for the same one again.

A call that ends without a word, and a link of a chain that does not move, tell that a peer is silent. From
then on it is asked in the background for something that needs its disk, and counts as before once it answers.
One that falls silent again soon after is left out for longer, each time twice as long. To be silent is a
hint, never a verdict: whoever needs the peer asks it still, but beside the others and not in front of them.
So a process that stood still itself, and takes everybody for silent when it wakes up, loses nothing by it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

REST_S: Final = 0.5  # before a silent peer is asked for the first time
REST_S_MAX: Final = 32.0
RELAPSE_S: Final = 60.0  # one that is silent again so soon has not come back for good
PEERS_MAX: Final = 256  # that are remembered; a cluster has fewer nodes

Ask = Callable[[str], Awaitable[bool]]


@dataclass(slots=True)
class _Silence:
    """`task` asks for the end of it; None when it is over, which `ended_at_s` tells of."""

    rest_s: float
    task: asyncio.Task[None] | None = None
    ended_at_s: float = 0.0


class SilentPeers:
    """Those of one process. `ask` tells whether a peer answers, within a bound; `close` ends it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._known: dict[str, _Silence] = {}

    def __contains__(self, node_id: str) -> bool:
        """Whether it did not answer lately."""
        known = self._known.get(node_id)
        return known is not None and known.task is not None

    def note(self, node_id: str) -> None:
        """It did not answer in time."""
        if node_id in self:
            return
        now_s = asyncio.get_running_loop().time()
        self._forget_before(now_s - RELAPSE_S)
        if len(self._known) >= PEERS_MAX:
            return
        before = self._known.get(node_id)
        rest_s = REST_S if before is None else min(2 * before.rest_s, REST_S_MAX)
        silence = self._known[node_id] = _Silence(rest_s)
        silence.task = asyncio.create_task(self._until_back(node_id, silence), name=f"silence of {node_id}")

    async def close(self) -> None:
        """Ask nobody any more."""
        tasks = [known.task for known in self._known.values() if known.task is not None]
        self._known.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _until_back(self, node_id: str, silence: _Silence) -> None:
        await asyncio.sleep(silence.rest_s)
        while not await self._ask(node_id):
            await asyncio.sleep(silence.rest_s)
        silence.task, silence.ended_at_s = None, asyncio.get_running_loop().time()

    def _forget_before(self, at_s: float) -> None:
        for node_id, known in list(self._known.items()):
            if known.task is None and known.ended_at_s < at_s:
                del self._known[node_id]
