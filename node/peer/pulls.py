"""Replicas that this node fetches by order of the leading coordinator.

The order is answered when the replica is here, or after ANSWER_S while it is still being fetched. The leader
then asks again, and receives a number that changes with any progress. It gives up a fetch without progress,
even a large one. So a fetch does not belong to a request; it ends if it was not requested for LINGER_S. All
fetches keep to the node's budget of bytes. An intact replica in this node's quarantine is restored instead of
fetched.
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

# Restores a blob from quarantine, by its name, and reports its reads; False if there is no intact one.
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
        """Fetch a blob; return the sources that failed.

        Raises as `Fetches.fetch_blob` does, which first checks whether the blob is in service. A failure of
        this disk is reported in heartbeats until a fetch succeeds.
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
