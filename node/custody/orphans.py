"""Delete orphaned blobs: content of rejected completions, and copies that arrived too late.

Every half minute, the log is asked about blobs that arrived (`node/storage/unclaimed.py`). If the log lists a
blob for this node, its note is removed. A blob is an orphan if no file refers to it PIN_S after it arrived,
and no upload on this disk became it. It is reported to the log, which from then on rejects changes that rely
on an earlier affirmation. It is then deleted, unless it was affirmed since. In this order, no completion can
rely on a deleted blob.
"""

import logging
from collections.abc import Sequence
from typing import Final

from ca.errors import FilestoreError
from metadata.model.safety_limits import SAFETY_BLOBS_MAX
from metadata.protocol.commands import ReportOrphans
from node.custody.context import PAGE_BLOBS, CustodyContext
from node.storage.blob_files import DROPS
from node.storage.pins import PIN_S, finished_blobs
from node.storage.unclaimed import DIRECTORY, Note
from runtime.background import Work

LOOK_S: Final = 30.0
NOTES_MAX: Final = 100_000  # kept in memory; the next look finds the rest
ORPHANS_MAX: Final = SAFETY_BLOBS_MAX  # deleted in one look: should the log be wrong, there is time to see it

_WITHOUT_FILES: Final = ("unknown", "unreferenced")
_log = logging.getLogger(__name__)


class Orphans:
    """The orphaned blobs of one node. `run` until it is cancelled."""

    def __init__(self, context: CustodyContext) -> None:
        self._context = context

    async def run(self) -> None:
        """For ever. What the disk or the log refuses is tried again."""
        trouble, ready = "cannot look for orphaned blobs now", self._context.view.wait_until_fresh
        await Work("orphans", self._look, every_s=LOOK_S, ready=ready, trouble=trouble).run()

    async def _look(self) -> None:
        await self.delete_orphans()

    async def delete_orphans(self) -> int:
        """Check once; return how many orphans were deleted. Raises FilestoreError, OSError."""
        context, orphans = self._context, list[Note]()
        finished = await context.disk.run(finished_blobs, context.blobs)  # these stay, and their notes
        notes = await context.disk.run(self._notes)
        for first in range(0, len(notes), PAGE_BLOBS):
            page, settled = notes[first : first + PAGE_BLOBS], list[Note]()
            known = await context.states_in_log([note.sha256 for note in page])
            for note in page:
                state, is_old = known.get(note.sha256, "unknown"), self._is_old(note)
                if state in _WITHOUT_FILES:
                    orphans += [note] if is_old and note.sha256 not in finished else []
                # otherwise another process may be about to record this node
                elif is_old or state != "wanted":
                    settled.append(note)
            await context.disk.run(self._forget, settled)
        return await self._delete(orphans[:ORPHANS_MAX]) if orphans else 0

    async def _delete(self, notes: list[Note]) -> int:
        context, deleted = self._context, 0
        marks: dict[Note, tuple[int, int] | None] = {}
        for note in notes:
            with context.blobs.poison.skipping(DROPS, note.sha256):
                marks[note] = await context.disk.run(context.blobs.mark, note.sha256)
        # After the marks: an upload says what it becomes before that comes, and a later one has another mark.
        finished = await context.disk.run(finished_blobs, context.blobs)
        asked = [note.sha256 for note in marks if note.sha256 not in finished]
        if not asked:
            return 0
        command = ReportOrphans(node_id=context.node_id, sha256s=asked)
        unclaimed = frozenset(await context.metadata.propose(command, list[str]))
        for note, mark in marks.items():
            if note.sha256 in unclaimed and await context.disk.run(self._drop, note, mark):
                deleted += 1
                await context.disk.run(self._forget, [note])
        if deleted:
            _log.info("deleted blobs that no file uses", extra={"count": deleted})
        return deleted

    def _drop(self, note: Note, mark: tuple[int, int] | None) -> bool:
        """Delete it, unless it arrived again or was affirmed since it was marked. Blocks.

        In that case it stays, and so does its note.
        """
        blobs, sha256 = self._context.blobs, note.sha256

        def stays() -> bool:
            return blobs.mark(sha256) != mark or not blobs.unclaimed.is_latest(note)

        try:
            gone = blobs.delete(sha256, unless=stays)
            is_gone = gone or blobs.mark(sha256) is None
        except FilestoreError as error:  # the comparison with the log finds it
            blobs.poison.note(DROPS, sha256, error)
            return True
        if gone:
            self._context.record("blob.orphan", sha256, "ok")
        return is_gone

    def _is_old(self, note: Note) -> bool:
        """Before or after: a clock that was set back keeps nothing for ever."""
        clocks_s = self._context.clock_s(), self._context.kept_s()
        return all(abs(at_s - note.at_ns / 1e9) >= PIN_S for at_s in clocks_s)

    def _forget(self, notes: Sequence[Note]) -> None:
        """Forget notes. One that cannot be removed blocks no others. Blocks."""
        blobs = self._context.blobs
        for note in notes:
            with blobs.poison.skipping(DIRECTORY, note.sha256):
                blobs.unclaimed.forget(note)

    def _notes(self) -> list[Note]:
        """Return the notes that can be removed; others were handled, and are tried again. Blocks."""
        blobs, poison = self._context.blobs, self._context.blobs.poison
        for sha256 in sorted(poison.names(DIRECTORY) - {""}):
            with poison.skipping(DIRECTORY, sha256):
                blobs.unclaimed.forget_all(sha256)
        with poison.skipping(DIRECTORY, ""):
            notes = blobs.unclaimed.some(NOTES_MAX)
            return [note for note in notes if note.sha256 not in poison.names(DIRECTORY)]
        return []
