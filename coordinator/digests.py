"""Members hash their state at the same places of the log and compare: one that differs stops itself.

The leader proposes HashState now and then; whoever applies it has a digest of the same slice, and reports it
through the log. The majority is right: a member that finds itself odd ends its process and does not start
again, the others raise an alarm.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ca.errors import FilestoreError, Internal
from ca.secretfiles import write_durable
from coordinator.client import MetadataClient
from coordinator.commands import AnyCommand, HashState, ReportHash, decode_envelope
from coordinator.divergence import Divergence, DivergenceWatch
from coordinator.driver import Driver
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import Entry, EntryKind
from coordinator.records import ClusterView, HashReport, StateHash
from coordinator.rpc import Refused, value_of
from coordinator.store import members_of

REPORTS_WAITING_MAX = 16  # of our own digests; the newest count
LAST_REPORT_S = 15.0  # for the odd one to tell its digest before it ends
REPORT_AGAIN_S = 0.2
FULL_SLICE_S = 1.0  # after a slice with more behind it: a million files, six million rows, take 50 minutes
_HASH_TAG, _REPORT_TAG = b"hash_state", b"report_hash"  # spares decoding every other entry

_log = logging.getLogger(__name__)


class StateDiverged(Internal):
    """The state of this member is not that of the majority: it must not go on, nor start again."""


class Digests:
    """Compares digests. The driver calls `deliver` with every applied entry; `run` does the talking."""

    def __init__(
        self,
        own_id: str,
        driver: Driver,
        metadata: MetadataClient,
        view: Callable[[], ClusterView],
        *,
        interval_s: float,
        marker: Path,
    ) -> None:
        self._own_id = own_id
        self._driver = driver
        self._metadata = metadata
        self._view = view
        self._interval_s = interval_s
        self._marker = marker
        self._watch = DivergenceWatch(own_id)
        self._to_report: asyncio.Queue[StateHash] = asyncio.Queue(REPORTS_WAITING_MAX)
        self._differs_at = 0
        self._diverged = asyncio.Event()
        self._odd: set[str] = set()

    @property
    def diverged(self) -> list[str]:
        """Other members that are known to differ from the majority, until they are removed."""
        current = {record.coordinator_id for record in self._view().coordinators}
        return sorted(self._odd & current)

    def deliver(self, entries: Sequence[Entry], replies: Sequence[bytes]) -> None:
        """Entries were applied here. Cheap for all that are no digests."""
        for entry, reply in zip(entries, replies, strict=True):
            if entry.kind is EntryKind.COMMAND and (_HASH_TAG in entry.data or _REPORT_TAG in entry.data):
                with contextlib.suppress(Refused):
                    self._deliver(decode_envelope(entry.data).command, reply)

    async def run(self) -> None:
        """Until cancelled. Raises StateDiverged when this member is the odd one."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._propose_for_ever(), name="state digests")
            group.create_task(self._report_for_ever(), name="reports of state digests")
            await self._diverged.wait()
            diverged = await asyncio.to_thread(mark_diverged, self._marker, self._own_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_REPORT_S):
                    await self._report_once()
            raise diverged

    async def _report_once(self) -> None:
        """Until the digest that differs got through, so that the others know who is odd."""
        digest = self._watch.own_digest(self._differs_at)
        while digest and not await self._report(self._differs_at, digest):
            await asyncio.sleep(REPORT_AGAIN_S)

    def _deliver(self, command: AnyCommand, reply: bytes) -> None:
        if isinstance(command, HashState):
            self._hashed(msgspec.msgpack.decode(value_of(reply), type=StateHash))
        elif isinstance(command, ReportHash):
            self._reported(msgspec.msgpack.decode(value_of(reply), type=HashReport))

    def _hashed(self, digest: StateHash) -> None:
        self._watch.own(digest.log_index, digest.digest)
        if self._to_report.full():
            self._to_report.get_nowait()
        self._to_report.put_nowait(digest)

    def _reported(self, report: HashReport) -> None:
        voters = members_of(self._view().coordinators).voters
        found = self._watch.reported(report.coordinator_id, report.log_index, report.digest, voters)
        if found is not None:
            self._judge(found)

    def _judge(self, found: Divergence) -> None:
        if self._own_id in found.odd and not self._diverged.is_set():
            self._differs_at = found.log_index
            self._diverged.set()
        self._odd.update(other for other in found.odd if other != self._own_id)
        _log.critical(
            "the states of the coordinators differ at index %d; odd: %s",
            found.log_index,
            ", ".join(found.odd) or "not known, as no digest has a majority",
        )

    async def _propose_for_ever(self) -> None:
        pause_s = self._interval_s
        while True:
            await asyncio.sleep(pause_s)
            pause_s = self._interval_s
            if self._driver.is_leader and self._driver.has_room:
                command = HashState()
                try:
                    reply = value_of(await self._driver.propose(command))
                    found = msgspec.msgpack.decode(reply, type=StateHash)
                    pause_s = pause_after(found.rows, command.rows_max, interval_s=self._interval_s)
                except (FilestoreError, NotLeader) as error:
                    _log.debug("the state is not hashed now: %s", error)

    async def _report_for_ever(self) -> None:
        while True:
            digest = await self._to_report.get()
            await self._report(digest.log_index, digest.digest)

    async def _report(self, log_index: int, digest: str) -> bool:
        """Whether it got through."""
        report = ReportHash(coordinator_id=self._own_id, log_index=log_index, digest=digest)
        try:
            await self._metadata.propose(report, HashReport)
        except FilestoreError as error:
            _log.info("the digest of the state was not reported: %s", error.details)
            return False
        return True


def pause_after(rows: int, rows_max: int, *, interval_s: float) -> float:
    """Seconds from a slice of so many rows to the next: less within a table than from one to the next."""
    return min(interval_s, FULL_SLICE_S) if rows >= rows_max else interval_s


def mark_diverged(marker: Path, own_id: str) -> StateDiverged:
    """Leave the marker that keeps this member from starting again; the error to end with. Blocks."""
    text = (
        f"The state of the coordinator {own_id} differs from that of the majority, by damage or by a fault of"
        " the software. It must not run any more. Set it up again under a new id with"
        " `filestore coordinator rebuild`; its present state is kept beside for examination."
    )
    _log.critical(text)
    write_durable(marker, text.encode() + b"\n")
    return StateDiverged(text)


def check_not_diverged(marker: Path) -> None:
    """Raises StateDiverged when `mark_diverged` was called on this directory."""
    try:
        said = marker.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return
    except OSError as error:
        said = f"{marker}, which says that the state is wrong, cannot be read: {error.strerror}."
    raise StateDiverged(
        said or f"{marker} is there, and says nothing: the state of this coordinator is wrong."
    )
