"""What a node tells about its disk: room, and whether it still takes bytes.

Looked at in a thread, told from memory.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable

from ca.errors import FilestoreError
from coordinator.calls import HeartbeatCall
from node.blobs import BlobStore
from node.content.locks import UploadLocks
from node.disk import DiskWorkers

LOOK_S = 1.0
PROBE_S = 10.0  # a synced write of a few bytes: often enough to notice a dying disk, too seldom to wear it
STALE_S = 30.0  # a look that takes longer than this says that the disk hangs

_log = logging.getLogger(__name__)


class DiskWatch:
    """The last look at the disk. `run` keeps looking until it is cancelled."""

    def __init__(
        self,
        disk: DiskWorkers,
        blobs: BlobStore,
        locks: UploadLocks,
        *,
        is_primary: bool = True,
        uploads_elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        """`is_primary`: of the process that speaks for the node; it adds the uploads of the other workers."""
        self._disk = disk
        self._blobs = blobs
        self._locks = locks
        self._is_primary = is_primary
        self._uploads_elsewhere = uploads_elsewhere
        self._free_bytes = 0
        self._total_bytes = 0
        self._writable_at_s = float("-inf")

    def heartbeat(self) -> HeartbeatCall:
        """For the coordinators; a disk that takes nothing has no room."""
        free_bytes = self._free_bytes if self.is_writable() else 0
        uploads = len(self._locks) + self._uploads_elsewhere()
        return HeartbeatCall(free_bytes, self._total_bytes, uploads, self._is_primary)

    @property
    def free_bytes(self) -> int:
        """What the process may still write, as it was at the last look."""
        return self._free_bytes

    @property
    def total_bytes(self) -> int:
        """The size of the file system."""
        return self._total_bytes

    def is_writable(self) -> bool:
        """Whether the disk took bytes a moment ago."""
        return time.monotonic() - self._writable_at_s < STALE_S

    async def look(self) -> None:
        """Once. Problems are logged and show in what is told."""
        now_s = time.monotonic()
        try:
            self._free_bytes = await self._disk.run(self._blobs.free_bytes)
            self._total_bytes = await self._disk.run(self._blobs.total_bytes)
            if now_s - self._writable_at_s >= PROBE_S:
                await self._disk.run(self._probe)
                self._writable_at_s = time.monotonic()
        except (FilestoreError, OSError) as error:
            self._writable_at_s = float("-inf")
            _log.error("the disk takes no bytes", extra={"reason": str(error)})

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    def _probe(self) -> None:
        name = self._blobs.write_incoming(b"probe")
        os.unlink(name, dir_fd=self._blobs.uploads_directory)
