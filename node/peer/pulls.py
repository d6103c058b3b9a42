"""Replicas that this node fetches because the leading coordinator says so.

The order is answered when the replica is here, or after ANSWER_S while it is still on its way: the leader
asks again, and is told a number that stays the same only while nothing moves. What stands still it gives up,
whatever its size. So a fetch belongs to nobody's request; it ends when nobody has asked for it for LINGER_S.
All keep to the node's budget of bytes. A sound replica that lies in this node's quarantine is put back rather
than fetched.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import Struct

from ca.errors import Unavailable
from node.diskio.executor import DiskWorkers
from node.diskio.fs import DiskRefused
from node.diskio.unusable_paths import WORK
from node.peer.fetch import Fetches
from node.peer.range_fetch import Pace
from node.storage.blobs import BlobStore
from node.storage.quarantine import QUARANTINED
from node.storage.segments import FinishedBlob

ANSWER_S: Final = 20.0
LINGER_S: Final = 60.0
PULLS_MAX: Final = 64

# Puts a blob back from quarantine, by its name, and tells what it reads; False if nothing sound is there.
Restore = Callable[[str, Callable[[int], None]], Awaitable[bool]]

_log = logging.getLogger(__name__)


class PullState(Struct, frozen=True, kw_only=True):
    """How a pull stands. `is_here`: whole, durable and affirmed.

    `moved`: a number that stays the same only while the pull, or what it waits for, stands still.
    `failed_sources`: nodes that did not give what they were asked for.
    """

    is_here: bool
    moved: int
    failed_sources: list[str] = []


class _Pull:
    """One blob on its way, and until when somebody may come back for it.

    `moved`: bytes that were read from quarantine.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[list[str]] | None = None
        self.until_s = 0.0
        self.moved = 0

    def count(self, size_bytes: int) -> None:
        """So many bytes were read."""
        self.moved += size_bytes


class Pulls:
    """The pulls of one node. `close` ends them."""

    def __init__(
        self,
        fetches: Fetches,
        blobs: BlobStore,
        disk: DiskWorkers,
        pace: Pace | None,
        restore: Restore | None = None,
    ) -> None:
        self._fetches = fetches
        self._blobs = blobs
        self._disk = disk
        self._pace = pace
        self._restore = restore
        self._pulls: dict[FinishedBlob, _Pull] = {}

    async def pull(
        self, blob: FinishedBlob, sources: Sequence[str], *, answer_s: float = ANSWER_S
    ) -> PullState:
        """How it stands after `answer_s` at most.

        Raises SourcesFailed when no source can give it, Unavailable, InsufficientStorage, Internal.
        """
        pull = self._pulls.get(blob) or self._begin(blob, sources)
        assert pull.task is not None
        loop = asyncio.get_running_loop()
        pull.until_s = max(pull.until_s, loop.time() + answer_s + LINGER_S)
        done, _ = await asyncio.wait({pull.task}, timeout=answer_s)
        moved = pull.moved + self._fetches.moved_bytes(blob)
        if not done:
            return PullState(is_here=False, moved=moved)
        if pull.task.cancelled():
            raise Unavailable("The fetch was ended; this node may be stopping.")
        failed = pull.task.result()
        if not await self._disk.run(self._blobs.affirm, blob.sha256):
            raise Unavailable("The replica is gone again.")
        return PullState(is_here=True, moved=moved, failed_sources=failed)

    async def close(self) -> None:
        """End all of them; what has come is kept."""
        tasks = [pull.task for pull in self._pulls.values() if pull.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, blob: FinishedBlob, sources: Sequence[str]) -> _Pull:
        if len(self._pulls) >= PULLS_MAX:
            raise Unavailable("Too many blobs are being pulled already.", retry_after_s=2)
        pull = self._pulls[blob] = _Pull()
        pull.task = asyncio.create_task(self._run(blob, sources, pull), name="pull")
        pull.task.add_done_callback(_see)  # whoever asked may not come back
        return pull

    async def _run(self, blob: FinishedBlob, sources: Sequence[str], pull: _Pull) -> list[str]:
        fetch = asyncio.create_task(self._bring(blob, sources, pull))
        loop = asyncio.get_running_loop()
        try:
            while not fetch.done() and (left_s := pull.until_s - loop.time()) > 0:
                await asyncio.wait({fetch}, timeout=left_s)
            if not fetch.done():
                _log.info("a pull was given up", extra={"sha256": blob.sha256})
                raise Unavailable("Nobody asks for this replica any more.")
            return await fetch
        finally:
            del self._pulls[blob]
            fetch.cancel()
            await asyncio.wait({fetch})
            _ = fetch.cancelled() or fetch.exception()  # seen: what ended the pull is raised

    async def _bring(self, blob: FinishedBlob, sources: Sequence[str], pull: _Pull) -> list[str]:
        """The sources that failed.

        Raises as `Fetches.fetch_blob` does, which looks first whether the blob is in service. That this disk
        refuses is told in heartbeats until a fetch goes through.
        """
        poison = self._blobs.poison
        try:
            if self._restore is not None and not await self._disk.run(self._blobs.has, blob.sha256):
                with poison.skipping(QUARANTINED, blob.sha256):  # else it comes from elsewhere
                    await self._restore(blob.sha256, pull.count)
            failed = await self._fetches.fetch_blob(blob.sha256, blob.size_bytes, sources, pace=self._pace)
        except DiskRefused as error:
            poison.note(WORK, "pull", error)
            raise
        poison.clear(WORK, "pull")
        return failed


def _see(task: "asyncio.Task[list[str]]") -> None:
    if not task.cancelled() and (failure := task.exception()) is not None:
        _log.warning("a pull failed", extra={"reason": str(failure)})
