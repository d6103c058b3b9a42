"""Members hash their state at the same places of the log and compare: one that differs stops itself.

The leader proposes HashState regularly. Each member that applies it computes a digest of the same slice, and
reports it through the log. `coordinator.member.divergence` decides which member is odd. A member that finds
itself odd transfers the lead and answers no reads. Once the others are a majority without it, it ends its
process, and does not start again. While members differ without a known odd one, no state is sent (`making`),
and the leader has the slices hashed one after the other, to find where they differ.

Tested by tests/unit/coordinator/member/test_comparing_group.py.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ca.errors import Conflict, FilestoreError, Internal
from ca.secretfiles import write_durable
from coordinator.member.divergence import DigestComparison, Divergence, DivergenceWatch, ReportedDigest
from coordinator.member.driver import Driver
from coordinator.member.rebuilding import rebuilt_at_ms
from coordinator.member.snapshot_making import TAKE_AGAIN_S
from coordinator.raft.core import NotLeader
from coordinator.raft.messages import Entry, EntryKind
from coordinator.raft.progress import ProgressState
from coordinator.rpc.server import Refused, value_of
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.pinned_state import PinnedState
from coordinator.storage.snapshot_store import SnapshotStore, UnpublishedSnapshot
from coordinator.storage.state_damage import StateDamaged, damage_in
from coordinator.storage.state_store import Store, members_of
from metadata.model.records import ClusterView, HashReport, StateHash
from metadata.protocol.commands import AnyCommand, HashState, HashWhole, ReportHash, decode_envelope
from metadata.rpc.client import MetadataClient
from runtime.background import Work, run_all
from runtime.json_files import decode_sealed, encode_sealed
from runtime.sqlite import DATABASE_ERRORS
from runtime.stopping import run_in_thread

REPORTS_WAITING_MAX = 16  # of our own digests; the newest are kept
LAST_REPORT_S = 15.0  # for the odd member to report its digest before it ends
REPORT_AGAIN_S = 0.2
REPORT_S = 10.0  # for a digest to be committed: another leads by then
FULL_SLICE_S = 1.0  # between slices within a table: a million files, six million rows, take 50 minutes
HURRIED_S = 0.05  # between slices while a difference is being located: a million files in minutes
# after members were found to differ: a pass of 10^7 files; then the usual interval applies
HURRY_S_MAX = 3600.0
VOUCH_S = 600.0  # for others to hash their whole state: 10^7 files take two minutes of one processor
VOUCH_LOOK_S = 0.1
CALL_S = 10.0  # for an entry to be applied
WHOLE_AGAIN_S = 60.0  # between two attempts to confirm a copied state
WHOLES_MAX = 16  # places with a digest of the whole state; the newest are kept
_HASH_TAG, _REPORT_TAG = b"hash_state", b"report_hash"  # avoid decoding every other entry

_log = logging.getLogger(__name__)


class StateDiverged(Internal):
    """The state of this member differs from that of the majority: it must not continue, nor start again."""


class _SavedDifferences(Struct, frozen=True, kw_only=True):
    """The facts that outlive the process: odd members, and unsettled differences.

    For the latter, it is not known which member is odd. It also keeps which state each member had at its last
    report (see ReportHash).
    """

    odd: list[str] = []
    rebuilt: dict[str, int] = {}
    open: dict[int, dict[str, str]] = {}


class Digests:
    """Compares digests. The driver calls `deliver` with every applied entry; `run` sends the reports.

    These are the `Witnesses` of `coordinator.member.snapshot_making`.
    """

    def __init__(
        self,
        own_id: str,
        driver: Driver,
        metadata: MetadataClient,
        view: Callable[[], ClusterView],
        *,
        store: Store,
        snapshots: SnapshotStore,
        interval_s: float,
        files: CoordinatorFiles,
    ) -> None:
        """Read the saved differences. From then on the driver asks this object before it makes a snapshot."""
        self._own_id = own_id
        self._driver = driver
        self._metadata = metadata
        self._view = view
        self._store = store
        self._snapshots = snapshots
        self._interval_s = self._slice_pause_s = interval_s
        self._files = files
        self._watch = DivergenceWatch(own_id)
        self._to_report: asyncio.Queue[tuple[int, ReportedDigest]] = asyncio.Queue(REPORTS_WAITING_MAX)
        self._wholes: deque[int] = deque(maxlen=WHOLES_MAX)
        self._to_hash: asyncio.Queue[PinnedState] = asyncio.Queue(1)
        self._whole_asked_at_s = float("-inf")
        self._logged_odd: set[str] = set()  # the odd members that were logged
        self._differs_at = 0
        self._opened_at_s = float("-inf")
        self._changed = asyncio.Event()  # set when the saved differences change
        self._to_examine = asyncio.Event()
        self._to_hurry = asyncio.Event()
        self._diverged = asyncio.Event()
        self._rebuilt_at_ms = rebuilt_at_ms(files.rebuilt)
        self._saved = _read_saved(files.differences)
        self._rebuilt = dict(self._saved.rebuilt)
        self._watch.odd.update(self._saved.odd)
        for log_index, digests in self._saved.open.items():
            self._watch.recall(log_index, digests)
        driver.making.witnesses = self

    @property
    def diverged(self) -> list[str]:
        """Return members whose state is known to be wrong, until they are removed; including this one."""
        return sorted(self._watch.odd & self._members())

    @property
    def differ_at(self) -> list[int]:
        """Return where in the log members differ without a known odd one."""
        return self._watch.open_places(self._members())

    @property
    def is_odd(self) -> bool:
        """Return whether the state of this member is known to be wrong."""
        return self._own_id in self._watch.odd

    @property
    def forbids(self) -> str:
        """Return why no state may be sent or copied now, "" if it may."""
        if self.is_odd:
            return f"the state of {self._own_id} is wrong: create that coordinator again"
        if places := self.differ_at:
            said = ", ".join(sorted(self._watch.digests_at(places[0])))
            return (
                f"the states of {said} differ at index {places[0]}, and it is not known yet which one "
                "is wrong. Start every coordinator that is down, as its state decides. See "
                "FilestoreCoordinatorsDiffer in the runbook"
            )
        return ""

    def deliver(self, entries: Sequence[Entry], replies: Sequence[bytes]) -> None:
        """Process entries that were applied here. Cheap for all that are no digests."""
        for entry, reply in zip(entries, replies, strict=True):
            if entry.kind is EntryKind.COMMAND and (_HASH_TAG in entry.data or _REPORT_TAG in entry.data):
                with contextlib.suppress(Refused):
                    self._deliver(decode_envelope(entry.data).command, reply)

    async def run(self) -> None:
        """Run until cancelled. Raises StateDiverged if this member is odd, and the others are enough."""
        if self.is_odd:
            self._driver.suspect()
        await run_all(
            Work("digests of the state", self._propose, every_s=0.0, fails=()),
            Work("reports of digests", self._report_next, every_s=0.0, fails=()),
            Work("digests of the whole state", self._hash_next, every_s=0.0, fails=()),
            Work("notes of differences", self._save, first_s=None, event=self._changed, fails=()),
            Work("examination of the state", self._examine, first_s=None, event=self._to_examine, fails=()),
            Work("end of an odd state", self._end, first_s=None, event=self._diverged, fails=()),
        )

    async def _end(self) -> None:
        """Raise StateDiverged."""
        diverged = await asyncio.to_thread(mark_diverged, self._files.diverged, self._own_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_REPORT_S):
                await self._report_once()
        raise diverged

    # For snapshot_making

    async def call(self) -> int:
        """Let all members hash their state at one entry, and return its log index.

        It is 0 if no majority could answer, or another leads. Raises NotLeader, FilestoreError, TimeoutError.
        """
        if not self._driver.is_leader or not self._can_decide():
            return 0
        async with asyncio.timeout(CALL_S):
            reply = await self._driver.propose(HashWhole())
        return msgspec.msgpack.decode(value_of(reply), type=int)

    def hash_pinned(self, pinned: PinnedState) -> None:
        """Hash the state that is pinned at a HashWhole, in the background; not while another is hashed."""
        if self.is_odd:
            pinned.close()
            self._report_soon(pinned.index, ReportedDigest(""))  # no member should wait for it
        elif self._to_hash.full():
            pinned.close()
        else:
            self._to_hash.put_nowait(pinned)

    async def confirm(self, made: UnpublishedSnapshot) -> bool:
        """Return whether a majority reports the same state there.

        Raises Conflict if a member has another one.
        """
        log_index = made.meta.index
        self._own_whole(log_index, made.content)
        ends_at_s = time.monotonic() + VOUCH_S
        while time.monotonic() < ends_at_s:
            standing = self._watch.compare_own(log_index, self._voters())
            if standing is DigestComparison.DIFFERS:
                raise Conflict(f"another coordinator has another state at index {log_index}")
            if standing is DigestComparison.AGREED:
                return True
            if not self._awaited(log_index):
                return False
            await asyncio.sleep(VOUCH_LOOK_S)
        _log.warning("not enough coordinators have reported the digest of their state at index %d", log_index)
        return False

    def note_lost_state(self, coordinator_id: str) -> None:
        """Note that another member has lost its state, and asks for one: its earlier reports are void."""
        self._watch.forget(coordinator_id)
        self._changed.set()

    def _awaited(self, log_index: int) -> list[str]:
        """Return the voters that could still report their state at a place."""
        return [
            voter
            for voter in self._able()
            if voter != self._own_id and not self._watch.has_reported(voter, log_index)
        ]

    def _can_decide(self) -> bool:
        """Return whether those that could answer are a majority of witnesses, or all but the odd ones."""
        able, origins = set(self._able()), self._watch.origins
        roots = {origins.get(voter, "") or voter for voter in able}
        voters = set(self._voters())
        return 2 * len(roots) > len(voters) or able >= voters - self._watch.odd

    def _able(self) -> list[str]:
        """Return voters that keep up with the log, as this member sees it, and are not known to be odd."""
        progress = self._driver.status().progress
        return [
            voter
            for voter in self._voters()
            if voter not in self._watch.odd
            and (
                voter == self._own_id
                or (voter in progress and progress[voter].active and _keeps_up(progress[voter].state))
            )
        ]

    def _members(self) -> set[str]:
        return {record.coordinator_id for record in self._view().coordinators}

    def _voters(self) -> tuple[str, ...]:
        return members_of(self._view().coordinators).voters

    # From the log

    def _deliver(self, command: AnyCommand, reply: bytes) -> None:
        if isinstance(command, HashState):
            self._hashed(msgspec.msgpack.decode(value_of(reply), type=StateHash))
        elif isinstance(command, ReportHash):
            self._reported(msgspec.msgpack.decode(value_of(reply), type=HashReport))

    def _hashed(self, hashed: StateHash) -> None:
        self._watch.origins[self._own_id] = self._snapshots.origin()
        self._watch.note_own(hashed.log_index, hashed.digest, hashed)
        agreed_at = self._watch.agreed_at(hashed)
        report = ReportedDigest(hashed.digest, agreed_at=agreed_at, touched=hashed.touched)
        self._report_soon(hashed.log_index, report)

    def _own_whole(self, log_index: int, digest: str) -> None:
        self._wholes.append(log_index)
        self._watch.origins[self._own_id] = self._snapshots.origin()
        self._watch.note_own(log_index, digest)
        self._report_soon(log_index, ReportedDigest(digest))

    def _report_soon(self, log_index: int, reported: ReportedDigest) -> None:
        if self._to_report.full():
            self._to_report.get_nowait()
        self._to_report.put_nowait((log_index, reported))

    def _reported(self, report: HashReport) -> None:
        if not self._is_of_this_state(report):
            return
        voters = self._voters()
        reported = ReportedDigest(report.digest, report.origin, report.agreed_at, report.touched)
        found = self._watch.process_report(report.coordinator_id, report.log_index, reported, voters)
        self._watch.origins[self._own_id] = self._snapshots.origin()  # now, not when it reported
        if found is not None:
            self._judge(found)
        if report.coordinator_id == self._snapshots.origin():
            # The decision is in the part of the log that the snapshot has replaced.
            self._watch.odd.update(set(report.odd) - {self._own_id})
        if self.is_odd and self._watch.can_do_without(self._differs_at, voters):
            self._diverged.set()
        if self._snapshots.origin() and report.log_index in self._wholes:
            self._take_as_own(report.log_index, voters)

    def _is_of_this_state(self, report: HashReport) -> bool:
        """Return False for this member's reports about a previous state.

        Another member with a new state starts again: it is not odd any more, and its earlier reports are
        void.
        """
        speaker = report.coordinator_id
        if speaker == self._own_id:
            return report.rebuilt_at_ms == self._rebuilt_at_ms
        if report.rebuilt_at_ms != self._rebuilt.get(speaker, 0):
            self._rebuilt[speaker] = report.rebuilt_at_ms
            self._watch.forget(speaker)
            self._watch.odd.discard(speaker)
            self._logged_odd.discard(speaker)
            self._changed.set()
        return True

    def _judge(self, found: Divergence) -> None:
        if self._own_id in found.odd and not self._driver.is_suspect:
            self._differs_at = found.log_index
            self._be_odd()
        self._opened_at_s = time.monotonic()
        self._changed.set()
        self._to_examine.set()
        self._to_hurry.set()
        is_news = not found.odd or bool(set(found.odd) - self._logged_odd)
        self._logged_odd.update(found.odd)
        _log.log(
            logging.CRITICAL if is_news else logging.INFO,
            "the states of the coordinators differ at index %d; wrong: %s",
            found.log_index,
            ", ".join(found.odd) or "not known, as nothing shows whose state is wrong",
        )

    def _be_odd(self) -> None:
        """Hand over the lead if another can lead, and answer no reads."""
        self._watch.odd.add(self._own_id)
        self._changed.set()
        self._driver.suspect()

    def _take_as_own(self, log_index: int, voters: Sequence[str]) -> None:
        """Treat a copied state as this member's own, once it is equally reliable.

        That is the case once a majority has the same, or all members that are not known to be odd.
        """
        if not self._watch.is_right(log_index, voters):
            return
        self._snapshots.note_confirmed()
        _log.info("the state copied to this coordinator agrees with the others' at index %d", log_index)

    # In the background

    async def _propose(self) -> None:
        await self._next_slice_due(self._slice_pause_s)
        self._slice_pause_s = self._interval_s
        if self._driver.is_leader and self._driver.has_room:
            command = HashState()
            try:
                reply = value_of(await self._driver.propose(command))
                found = msgspec.msgpack.decode(reply, type=StateHash)
                self._slice_pause_s = pause_after(found.rows, command.rows_max, interval_s=self._interval_s)
                await self._ask_for_whole()
            except (FilestoreError, NotLeader, TimeoutError) as error:
                _log.debug("the state is not hashed now: %s", error)

    async def _next_slice_due(self, pause_s: float) -> None:
        """Wait until the next slice is due; without a pause while a difference is being located."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._to_hurry.wait()
                await asyncio.sleep(HURRIED_S)
        if not self.differ_at or time.monotonic() - self._opened_at_s > HURRY_S_MAX:
            self._to_hurry.clear()

    async def _ask_for_whole(self) -> None:
        """Ask for a hash of the whole state if a voter has an unconfirmed copy, which may prove right."""
        is_copied = any(self._watch.origins.get(voter) for voter in self._voters())
        if is_copied and time.monotonic() - self._whole_asked_at_s > WHOLE_AGAIN_S:
            self._whole_asked_at_s = time.monotonic()
            await self.call()

    async def _hash_next(self) -> None:
        pinned = await self._to_hash.get()
        try:
            digest = await run_in_thread(pinned.digest_and_close)
        except DATABASE_ERRORS as error:
            _log.warning("the whole state cannot be hashed: %s", error)
            if (damage := damage_in(error)) is not None:
                self._store.condemn(damage)
        else:
            self._own_whole(pinned.index, digest)

    async def _examine(self) -> None:
        """Whenever members are found to differ, check the structure of this member's database."""
        if self.differ_at:
            await self._driver.reread()
        if flaw := await asyncio.to_thread(self._snapshots.flaw):
            self._store.condemn(StateDamaged(f"state.sqlite is damaged: {flaw}"))
        await asyncio.sleep(TAKE_AGAIN_S)

    async def _save(self) -> None:
        places = {log_index: self._watch.digests_at(log_index) for log_index in self.differ_at}
        saved = _SavedDifferences(odd=sorted(self._watch.odd), open=places, rebuilt=dict(self._rebuilt))
        if saved != self._saved:
            self._saved = saved
            await asyncio.to_thread(write_durable, self._files.differences, encode_sealed(saved))

    async def _report_next(self) -> None:
        log_index, reported = await self._to_report.get()
        # Digests of slices are repeated, but a lost one may show which member is odd: a pass later the
        # earlier agreement is forgotten. Other digests are awaited.
        is_awaited, since_s = not reported.digest or log_index in self._wholes, time.monotonic()
        while not await self._report(log_index, reported):
            if not is_awaited and time.monotonic() - since_s > REPORT_S:
                break
            await asyncio.sleep(REPORT_AGAIN_S)

    async def _report_once(self) -> None:
        """Retry until the differing digest is reported, so that the others know which member is odd."""
        digest = self._watch.own_digest(self._differs_at)
        while digest and not await self._report(self._differs_at, ReportedDigest(digest)):
            await asyncio.sleep(REPORT_AGAIN_S)

    async def _report(self, log_index: int, reported: ReportedDigest) -> bool:
        """Report a digest; return whether it was committed."""
        report = ReportHash(
            coordinator_id=self._own_id,
            log_index=log_index,
            digest=reported.digest,
            origin=self._snapshots.origin(),
            agreed_at=reported.agreed_at,
            touched=reported.touched,
            odd=self.diverged,
            rebuilt_at_ms=self._rebuilt_at_ms,
        )
        try:
            await self._metadata.propose(report, HashReport)
        except FilestoreError as error:
            _log.info("the digest of the state was not reported: %s", error.details)
            return False
        return True


def _keeps_up(state: ProgressState) -> bool:
    return state is not ProgressState.SNAPSHOT


def _read_saved(path: Path) -> _SavedDifferences:
    """Read the saved differences. Blocks, for the start.

    Unreadable ones are ignored, as they are found again.
    """
    try:
        return decode_sealed(path.read_bytes(), _SavedDifferences)
    except FileNotFoundError:
        return _SavedDifferences()
    except (OSError, msgspec.MsgspecError) as error:
        _log.warning("%s cannot be read: %s", path, error)
        return _SavedDifferences()


def pause_after(rows: int, rows_max: int, *, interval_s: float) -> float:
    """Return the seconds from a slice of `rows` rows to the next: fewer within a table than after it."""
    return min(interval_s, FULL_SLICE_S) if rows >= rows_max else interval_s


def mark_diverged(marker: Path, own_id: str) -> StateDiverged:
    """Write the marker that keeps this member from starting again; return the error to end with. Blocks."""
    text = (
        f"The state of the coordinator {own_id} differs from that of the majority, because of damage "
        "or a software fault. It must not run any more. Create it again under a new id with `filestore "
        "coordinator rebuild`, which keeps the present state for examination."
    )
    _log.critical(text)
    write_durable(marker, text.encode() + b"\n")
    return StateDiverged(text)


def check_not_diverged(marker: Path) -> None:
    """Raise StateDiverged if `mark_diverged` was called on this directory."""
    try:
        said = marker.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return
    except OSError as error:
        said = f"{marker}, which says that the state is wrong, cannot be read: {error.strerror}."
    raise StateDiverged(said or f"{marker} exists but is empty: the state of this coordinator is wrong.")
