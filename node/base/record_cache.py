"""Records of files for downloads: from memory while that is as good as asking, otherwise from coordinators.

`run` follows the leader: it keeps one call open, whose reply says which records must be dropped, and how long
the others may be used. `node/base/record_store.py` has the rules, `coordinator/member/record_leases.py` says
why they suffice. Without a lease every read asks the coordinators, as if there were no cache. After UNUSED_S
without a read, the cache is dropped and the call ends, until the next read.
"""

import asyncio
import contextlib
import logging
import secrets

from ca.errors import FilestoreError
from metadata.model.records import Caller, ContentRecord
from metadata.protocol.calls import FollowCall
from metadata.protocol.queries import GetContent
from metadata.rpc.client import MetadataClient
from node.base.metrics import NodeMetrics
from node.base.record_store import CachedRecords
from runtime.background import DONE, Pause, Work
from runtime.clock import boot_time_s

FOLLOW_TIMEOUT_S = 1.5  # the leader answers after a third of this; an older lease is not worth waiting for
LEAVE_TIMEOUT_S = 0.5  # without this, a write waits for the lease, as after a crash
FOLLOW_AGAIN_S = 0.1  # after no answer
UNUSED_S = 10.0

_log = logging.getLogger(__name__)


class RecordCache:
    """One per process. `run` is owned by it. For one event loop.

    Its clock counts while the machine is suspended, too: leases run out then.
    """

    def __init__(self, metadata: MetadataClient, metrics: NodeMetrics) -> None:
        self._metadata = metadata
        self._records = CachedRecords()
        self._subscriber = secrets.token_hex(16)
        self._has_left = False
        self._read_at_s = boot_time_s()
        self._is_read = asyncio.Event()  # cleared after a while without reads
        self._hits = metrics.record_reads.labels("kept")
        self._misses = metrics.record_reads.labels("asked")
        metrics.records_kept.set_function(lambda: len(self._records))
        metrics.record_lease.set_function(lambda: int(self.is_leased))

    @property
    def is_leased(self) -> bool:
        """Return whether any record may be answered from memory now."""
        return self._records.is_leased(now_s=boot_time_s())

    def get(self, caller: Caller, file_uuid: str) -> ContentRecord | None:
        """Return the record of a file if it is cached and this caller may read it now, otherwise None.

        It is as linearizable as asking. The caller's token was verified just now. No I/O.
        """
        now_s = boot_time_s()
        if now_s - self._read_at_s > UNUSED_S:
            self._is_read.set()
        self._read_at_s = now_s
        record = self._records.get(caller, file_uuid, now_s=now_s)
        if record is not None:
            self._hits.inc()
        return record

    async def read(self, caller: Caller, file_uuid: str) -> ContentRecord:
        """Return the record from the cache, or request it. Raises the errors of GetContent, Unavailable."""
        if (record := self.get(caller, file_uuid)) is not None:
            return record
        self._misses.inc()
        query = GetContent(caller=caller, file_uuid=file_uuid)
        reading = self._records.begin(now_s=boot_time_s())
        if reading is None:
            return await self._metadata.read(query, ContentRecord)
        try:
            record = await self._metadata.read(query, ContentRecord)
            self._records.keep(reading, caller, record, now_s=boot_time_s())
            return record
        finally:
            self._records.end(reading)

    def forget(self, file_uuid: str) -> None:
        """Drop the cached record of a file, as none of the replicas in it could be read."""
        self._records.forget(file_uuid)

    async def leave(self) -> None:
        """Stop caching, and tell the leader, so that no write waits for a process that ends."""
        self._has_left = True
        await self._let_go()

    async def _let_go(self) -> None:
        self._records.forget_all()
        call = FollowCall(self._subscriber, self._records.term, self._records.version, is_leaving=True)
        with contextlib.suppress(FilestoreError):
            await self._metadata.follow(call, timeout_s=LEAVE_TIMEOUT_S)

    async def run(self) -> None:
        """Follow the leader until cancelled, or until this process has left."""
        await Work(
            "record cache",
            self._follow,
            every_s=0.0,
            event=self._is_read,
            retry_s=FOLLOW_AGAIN_S,
            level=logging.DEBUG,
            trouble="cannot receive the leader's invalidations now",
        ).run()

    async def _follow(self) -> Pause | None:
        if self._has_left:
            return DONE
        if boot_time_s() - self._read_at_s > UNUSED_S:
            await self._let_go()
            self._subscriber = secrets.token_hex(16)  # a subscriber that has left does not come back
            return Pause(None)
        call = FollowCall(self._subscriber, self._records.term, self._records.version)
        sent_at_s = boot_time_s()
        reply = await self._metadata.follow(call, timeout_s=FOLLOW_TIMEOUT_S)
        if self._has_left:
            return DONE
        self._records.follow(reply, sent_at_s=sent_at_s, now_s=boot_time_s())
        return None
