"""Monitor a node's disk: free space, and whether it can be written.

Looked at in a thread, told from memory. What this process keeps open of files that others have deleted is
given back on the way, and an index of the packs that was found damaged is rebuilt.

Tested by tests/unit/node/membership/test_hung_disk.py.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Callable

from ca.errors import FilestoreError, Unavailable
from metadata.model.rules import RULES
from metadata.protocol.calls import HeartbeatCall
from node.diskio.executor import DiskWorkers
from node.packs.index import IndexDamaged
from node.storage.blobs import BlobStore
from node.uploads.write_locks import UploadLocks
from runtime.background import Pause, Work, run_all
from runtime.lifetime import out_of_descriptors
from runtime.logs import LastingTroubles
from runtime.version import VERSION
from runtime.wording import reason_of

LOOK_S = 2.0  # the interval of reports
PROBE_S = 10.0  # a synced write of a few bytes: often enough to notice a dying disk, too seldom to wear it
POISON_SHOWN = 8  # in a heartbeat
STALE_S = 30.0  # a disk that accepted no bytes for this long is reported as not writable
HEALED_S = 30.0  # after a rebuilding of the index of the packs, or a try: a disk that fails has no rest else
HANG_S = 15.0  # a look that takes longer says that the disk hangs: a busy one takes a second or two

_NOT_REBUILT = "the index of the packs is not rebuilt yet"

_log = logging.getLogger(__name__)
_TROUBLES = LastingTroubles(_log)


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
        self.scrubbed_since_ms: Callable[[], int] = lambda: 0  # see `Scrubber.since_ms`, which comes later
        self.custody_stopped: Callable[[], list[str]] = list  # see `CustodyStops.kinds`
        self.blocked_packs: Callable[[], tuple[int, int]] = lambda: (0, 0)  # the fields of `BlockedPacks`
        self.unreachable: Callable[[], list[str]] = list  # see `Reach.unreachable`
        self.poison_elsewhere: Callable[[], int] = lambda: 0  # of the other workers
        self.web_certificate_ends_ms: Callable[[], int] = lambda: 0  # no matter of the disk, but told with it
        self._free_bytes = 0
        self._total_bytes = 0
        self._writable_at_s = float("-inf")
        self._has_looked = False
        self._trouble = ""  # the fault at the last check
        self._looking_since_s: float | None = None
        disk.hangs = self.hangs
        self._is_full = False  # so that no bytes are accepted, although nothing fails
        self._has_index = True  # at the last look
        self._to_heal = asyncio.Event()  # the index of the packs
        self._was_hanging = False  # when waits for the disk were looked at

    def heartbeat(self) -> HeartbeatCall:
        """For the coordinators; a disk that takes nothing has no room."""
        is_writable = self.is_writable()
        blocked_dead_bytes, blocked_wanted_bytes = self.blocked_packs()
        return HeartbeatCall(
            self._free_bytes if is_writable else 0,
            self._total_bytes,
            len(self._locks) + self._uploads_elsewhere(),
            self._is_primary,
            takes_bytes=is_writable or not self._has_looked,
            scrubbed_since_ms=self.scrubbed_since_ms(),
            custody_stopped=self.custody_stopped(),
            unreachable=self.unreachable(),
            disk_fails=self.fails(),
            disk_full=self.is_full(),
            poison=self._blobs.poison.shown(POISON_SHOWN),
            poison_count=len(self._blobs.poison) + self.poison_elsewhere(),
            web_certificate_ends_ms=self.web_certificate_ends_ms(),
            version=VERSION,
            rules=RULES,
            blocked_dead_bytes=blocked_dead_bytes,
            blocked_wanted_bytes=blocked_wanted_bytes,
        )

    @property
    def free_bytes(self) -> int:
        """Return the free space at the last check."""
        return self._free_bytes

    @property
    def total_bytes(self) -> int:
        """The size of the file system."""
        return self._total_bytes

    def is_writable(self) -> bool:
        """Whether the disk took bytes a moment ago, and has room for more."""
        is_recent = time.monotonic() - self._writable_at_s < STALE_S
        return is_recent and not self._is_full and not self.hangs()

    def is_full(self) -> bool:
        """Whether the disk takes no bytes for want of room, and for nothing else."""
        return self._is_full and not self.hangs()

    def hangs(self) -> bool:
        """Return whether a check or probe of the disk has been without an answer for HANG_S.

        A check ends at once if another caller's probe is waiting.
        """
        return _is_long_ago(self._looking_since_s) or _is_long_ago(self._blobs.probe.waits_since_s)

    def fails(self) -> bool:
        """Whether the disk takes no bytes for another reason than that it is full: it may have lost some."""
        return self._has_looked and not self.is_writable() and not self.is_full()

    async def check(self) -> None:
        """Check once. Problems are logged, and included in heartbeats."""
        self._looking_since_s = time.monotonic()
        try:
            await self._look()
        finally:
            self._looking_since_s = None
        if not self._has_index:
            self._to_heal.set()

    async def _look(self) -> None:
        now_s = time.monotonic()
        try:
            await self._disk.run(self._measure)
            was_full, self._is_full = self._is_full, self._free_bytes == 0
            if is_due := now_s - self._writable_at_s >= PROBE_S:
                await self._disk.run(self._blobs.probe)
                self._writable_at_s = time.monotonic()
            if is_due or was_full != self._is_full:
                self._log_change("the disk is full" if self._is_full else "")
        except (FilestoreError, OSError) as error:
            if not _is_shortage(error):
                self._writable_at_s = float("-inf")
                self._is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._log_change(reason_of(error))
        self._has_looked = True

    def _measure(self) -> None:
        """Measure everything in one job of a thread, as each job wakes one."""
        blobs = self._blobs
        self._has_index = blobs.packed.store.index.is_usable
        blobs.drop_changed()
        for name in blobs.areas.remake(blobs.disk):
            _log.error("a directory of this node was removed, and is created again", extra={"area": name})
        self._free_bytes, self._total_bytes = blobs.free_bytes(), blobs.total_bytes()

    def _log_change(self, trouble: str) -> None:
        """Log what has changed."""
        if trouble and trouble != self._trouble:
            _log.error("the disk is not writable", extra={"reason": trouble})
        elif self._trouble and not trouble:
            _log.warning("the disk is writable again")
        self._trouble = trouble

    async def run(self) -> None:
        """Check forever; while the disk does not respond, abort the callers that wait for it."""
        await run_all(
            Work("disk", self.check, every_s=LOOK_S),
            Work(
                "pack index",
                self._heal,
                first_s=None,
                event=self._to_heal,
                retry_s=HEALED_S,
                level=logging.ERROR,
                trouble=_NOT_REBUILT,
            ),
            Work("waits for the disk", self._break_off, every_s=LOOK_S, first_s=LOOK_S),
        )

    async def _heal(self) -> Pause | None:
        """Rebuild the damaged index of the packs, concurrently with the checks, as it takes long."""
        try:
            await self._disk.run(self._blobs.packed.heal)
        except IndexDamaged as error:  # other processes have yet to close it
            _TROUBLES.note(_NOT_REBUILT, reason_of(error))
            return Pause(LOOK_S)
        await asyncio.sleep(HEALED_S)
        return None

    async def _break_off(self) -> None:
        """Twice in a row: a process that stood still itself finds a look that began long ago."""
        does_hang = self.hangs()
        if does_hang and not self._was_hanging:
            self._log_change("the disk does not respond")
        elif does_hang:
            self._disk.break_off()
            self._locks.break_off()
        self._was_hanging = does_hang


def _is_long_ago(since_s: float | None) -> bool:
    return since_s is not None and time.monotonic() - since_s >= HANG_S


def _is_shortage(error: FilestoreError | OSError) -> bool:
    """Whether this process has too many files open, which tells nothing of the disk while it is short."""
    return isinstance(error, Unavailable) or (
        isinstance(error, OSError) and out_of_descriptors(error) is not None
    )
