"""Verify copies in quarantine in the background.

Reading a large copy takes hours within the node's budget: only a caller that asks for this copy waits for it.
Small copies have their own turns, so that they do not wait for large ones. A copy that was read completely
and is useless is not read again while the file does not change.

Tested by tests/unit/node/custody/test_scrub.py.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ca.errors import FilestoreError
from node.custody.context import CustodyContext
from node.storage.quarantine import QuarantinedBlob
from node.storage.segments import SEGMENT_BYTES
from runtime.lifetime import end_tasks

READ_BYTES: Final = 4 * SEGMENT_BYTES  # in one job for the disk's threads
LARGE_BYTES: Final = 256 << 20  # more than a second of reading, and many seconds while clients are served
LARGE_AT_ONCE: Final = 2
SMALL_AT_ONCE: Final = 4
CHECKS_MAX: Final = 1_000  # asked for at once: a page of notes, a page of a comparison, all pulls
REPORT_S: Final = 5.0
UNSOUND_MAX: Final = 10_000  # names that are remembered; more are only read again

_log = logging.getLogger(__name__)


class Checks:
    """The checks of one node. For one event loop; `close` ends them.

    `late` is called for a copy that was restored after `wait_for_results` had returned. `unsound` is
    called for each copy that was read to its end and does not match its name.
    """

    def __init__(
        self,
        context: CustodyContext,
        late: Callable[[str], Awaitable[None]],
        unsound: Callable[[str, QuarantinedBlob], None],
    ) -> None:
        self.read_bytes = 0  # by all of them so far
        self._context = context
        self._late = late
        self._on_unsound = unsound
        self._running: dict[str, asyncio.Task[bool]] = {}
        self._given_up: set[str] = set()
        self._large, self._small = asyncio.Semaphore(LARGE_AT_ONCE), asyncio.Semaphore(SMALL_AT_ONCE)
        self._unsound: OrderedDict[str, tuple[int, int]] = OrderedDict()

    async def restore(self, sha256: str, *, moved: Callable[[int], None]) -> bool:
        """Restore a copy if it exists and is intact; return whether it was. Waits for the end of the check.

        `moved` is called every REPORT_S with the bytes read of this copy, or of those that it waits for.
        Raises FilestoreError.
        """
        check = self._begin(sha256)
        if check is None:
            return False
        reported_bytes = self.read_bytes
        while not check.done():
            await asyncio.wait({check}, timeout=REPORT_S)  # cancelling this caller does not end the check
            moved(self.read_bytes - reported_bytes)
            reported_bytes = self.read_bytes
        return not check.cancelled() and check.result()

    async def wait_for_results(self, sha256s: Sequence[str], wait_s: float) -> dict[str, bool]:
        """Return which of these were restored, and which were not, in time.

        The checks of the others continue.

        Unreadable copies count as not restored.
        """
        checks = {sha256: check for sha256 in sha256s if (check := self._begin(sha256)) is not None}
        self._given_up -= checks.keys()
        if checks:
            await asyncio.wait(checks.values(), timeout=wait_s)
        undecided = {sha256 for sha256, check in checks.items() if not check.done()}
        self._given_up |= undecided
        return {sha256: _is_restored(checks.get(sha256)) for sha256 in sha256s if sha256 not in undecided}

    async def close(self) -> None:
        """End all of them; copies stay where they are."""
        await end_tasks(self._running.values())

    def _begin(self, sha256: str) -> asyncio.Task[bool] | None:
        """The check of this copy; None while there are too many."""
        check = self._running.get(sha256)
        if check is None and len(self._running) < CHECKS_MAX:
            check = self._running[sha256] = asyncio.create_task(self._run(sha256), name="quarantine check")
            check.add_done_callback(_see)
        return check

    async def _run(self, sha256: str) -> bool:
        try:
            is_restored = await self._check(sha256)
            if is_restored and sha256 in self._given_up:
                await self._late(sha256)
            return is_restored
        finally:
            self._given_up.discard(sha256)
            del self._running[sha256]

    async def _check(self, sha256: str) -> bool:
        """Raises FilestoreError."""
        context = self._context
        first = await context.disk.open(context.quarantine.open, sha256)
        if first is None:
            return False
        with first:
            is_large = first.size_bytes > LARGE_BYTES
            if self._unsound.get(sha256) == first.identity:
                return False
        async with self._large if is_large else self._small:
            quarantined = await context.disk.open(context.quarantine.open, sha256)
            if quarantined is None:
                return False
            with quarantined:
                return await self._restore(sha256, quarantined)

    async def _restore(self, sha256: str, quarantined: QuarantinedBlob) -> bool:
        context = self._context
        await self._read_whole(quarantined)
        if not await context.disk.run(quarantined.put_back):
            self._on_unsound(sha256, quarantined)
            self._unsound[sha256] = quarantined.identity
            while len(self._unsound) > UNSOUND_MAX:
                self._unsound.popitem(last=False)
            return False
        context.metrics.replicas_restored.inc()
        context.record("replica.restore", sha256, "ok")
        _log.warning("restored a blob from quarantine", extra={"sha256": sha256})
        return True

    async def _read_whole(self, quarantined: QuarantinedBlob) -> None:
        while quarantined.offset < quarantined.size_bytes:
            size_bytes = min(READ_BYTES, quarantined.size_bytes - quarantined.offset)
            await self._context.budget.take(size_bytes)
            self.read_bytes += size_bytes
            await self._context.disk.run(quarantined.read, size_bytes)


def _is_restored(check: asyncio.Task[bool] | None) -> bool:
    """Return whether a check has ended with the blob restored."""
    return check is not None and not check.cancelled() and check.exception() is None and check.result()


def _see(check: asyncio.Task[bool]) -> None:
    """Retrieve the result, as the caller may not wait any more."""
    failure = None if check.cancelled() else check.exception()
    if isinstance(failure, FilestoreError):
        _log.warning("cannot check a copy in quarantine", extra={"reason": failure.details})
    elif failure is not None:
        _log.error("the check of a copy in quarantine failed", exc_info=failure)
