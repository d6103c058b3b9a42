"""Replicas that this node fetches because the leading coordinator says so.

The order is answered when the replica is here, or after ANSWER_S while it is still on its way: the leader
asks again, and is told a number that stays the same only while nothing moves. What stands still it gives up,
whatever its size. So a fetch belongs to nobody's request; it ends when nobody has asked for it for LINGER_S.
All keep to the node's budget of bytes. A sound replica that lies in this node's quarantine is put back rather
than fetched.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from ca.errors import Unavailable
from node.base.shared_work import SharedWork, StillRunning
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


class PullState(Struct, frozen=True, kw_only=True):
    """How a pull stands. `is_here`: whole, durable and affirmed.

    `moved`: a number that stays the same only while the pull, or what it waits for, stands still.
    `failed_sources`: nodes that did not give what they were asked for.
    """

    is_here: bool
    moved: int
    failed_sources: list[str] = []


class Pulls(SharedWork[FinishedBlob, list[str]]):
    """The pulls of one node: each comes to the sources that failed."""

    def __init__(
        self,
        fetches: Fetches,
        blobs: BlobStore,
        disk: DiskWorkers,
        pace: Pace | None,
        restore: Restore | None = None,
    ) -> None:
        super().__init__("pulls of replicas", at_most=PULLS_MAX, linger_s=LINGER_S)
        self._fetches = fetches
        self._blobs = blobs
        self._disk = disk
        self._pace = pace
        self._restore = restore

    async def pull(
        self, blob: FinishedBlob, sources: Sequence[str], *, answer_s: float = ANSWER_S
    ) -> PullState:
        """How it stands after `answer_s` at most.

        Raises SourcesFailed when no source can give it, Unavailable, InsufficientStorage, Internal.
        """
        try:
            failed = await self.join(blob, partial(self._bring, blob, sources), answer_s=answer_s)
        except StillRunning as state:
            return PullState(is_here=False, moved=state.moved)
        if not await self._disk.run(self._blobs.affirm, blob.sha256):
            raise Unavailable("The replica has disappeared again.")
        return PullState(is_here=True, moved=self.moved, failed_sources=failed)

    async def _bring(self, blob: FinishedBlob, sources: Sequence[str]) -> list[str]:
        """The sources that failed.

        Raises as `Fetches.fetch_blob` does, which looks first whether the blob is in service. That this disk
        refuses is told in heartbeats until a fetch goes through.
        """
        poison = self._blobs.poison
        try:
            if self._restore is not None and not await self._disk.run(self._blobs.has, blob.sha256):
                with poison.skipping(QUARANTINED, blob.sha256):  # else it comes from elsewhere
                    await self._restore(blob.sha256, self.count)
            failed = await self._fetches.fetch_blob(
                blob.sha256, blob.size_bytes, sources, pace=self._pace, moved=partial(self.count, key=blob)
            )
        except DiskRefused as error:
            poison.note(WORK, "pull", error)
            raise
        poison.clear(WORK, "pull")
        return failed
