"""Check that the file of the state, and each of its pages, is as it was left.

Three properties are checked, which are always correct after a crash or a power cut: the mark in the file,
against the recorded one; the file against its WAL; and the sums of the pages. Pages without sums, as after an
upgrade, are checked by SQLite (PRAGMA quick_check). Blocking.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.storage.database import mark_of, new_mark, read_at_rest, read_rest_note, write_rest_note
from coordinator.storage.page_sums import PageSums
from coordinator.storage.state_damage import StateDamaged
from coordinator.storage.stored_sums import SUMS, StoredSums
from runtime.sqlite import integrity_of


class StateFile:
    """The database file of one Store.

    Make it before the first connection; `begin` after that; `close` it after the last one is closed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._index_at_rest, self._mark_at_rest, self._note_at_rest = read_at_rest(path)
        self._sums: PageSums | None = None
        self._is_whole = False  # the file has all commits, and no later change has noted that yet

    def begin(self, writer: sqlite3.Connection) -> None:
        """Verify the file and its WAL, before the first checkpoint.

        Raises OSError, sqlite3.Error, and StateDamaged unless both are the earlier ones, and belong together.
        """
        sums, mark = self._take_up(), mark_of(writer)
        noted, found = read_rest_note(writer), self._index_at_rest
        # 0 after a crash in the middle of a checkpoint: the WAL has the other half. A new mark has no note.
        # until 0.3.0: 0.1.0 leaves the note in the file.
        is_other = found > 0 and noted not in (0, self._note_at_rest) and mark != self._mark_at_rest
        if is_other or sums.mark not in (0, mark):
            raise StateDamaged("state.sqlite is damaged: it was replaced by another file, or is missing")
        if sums.denies_wal:
            raise StateDamaged("state.sqlite is damaged: its WAL belongs to another database")
        if 0 < found < noted:
            raise StateDamaged(
                f"state.sqlite is damaged: it ends at entry {found}, but its WAL needs {noted}"
            )
        row = writer.execute("SELECT log_index FROM applied").fetchone()
        if row is not None and self._index_at_rest > row[0]:
            raise StateDamaged(
                f"state.sqlite is damaged: it ends at entry {self._index_at_rest}, and its WAL at {row[0]}"
            )

    def begin_anew(self) -> None:
        """Start again with the file of an installed snapshot."""
        self._take_up()

    def flaw(self, reader: sqlite3.Connection) -> str:
        """Return the fault of any page, "" for none. Raises sqlite3.Error.

        Takes a second for each 1 GiB if all sums are known, otherwise for each 150 MiB. Without sums only the
        structure is checked, which does not find changed values and surplus index entries.
        """
        assert self._sums is not None, "begun"
        try:
            odd, all_known = self._sums.compare_all()
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
        if odd:
            return f"page {odd[0]} changed while no process ran"
        if all_known:
            return ""
        (found,) = reader.execute("PRAGMA quick_check(1)").fetchone()
        return "" if found == "ok" else str(found)

    def compare_slice(self) -> tuple[str, bool]:
        """Compare the next 1 MiB; return its fault, and whether a round has ended. Any thread."""
        assert self._sums is not None, "begun"
        try:
            odd, is_round = self._sums.compare_slice()
        except OSError as error:
            return f"it cannot be read ({error.strerror})", False
        return f"page {odd[0]} has changed without a write" if odd else "", is_round

    def adopt(self, writer: sqlite3.Connection) -> None:
        """Keep sums for the next process, if that is not done already. Raises OSError, sqlite3.Error."""
        if self._sums is not None and not self._sums.mark:
            mark, self._is_whole = new_mark(writer), False
            self.sync_wal()  # otherwise a power cut leaves sums of a file without a mark
            self._sums.adopt(mark)

    def sync_wal(self) -> None:
        """Make committed changes durable: see Store.checkpoint. Raises OSError."""
        try:
            wal = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # no commit since the last checkpoint, which copies all
        try:
            os.fdatasync(wal)
        finally:
            os.close(wal)

    def compare_indexes(self, table: str, stop: threading.Event) -> str:
        """Return the inconsistency in a table and its indexes, "" for none: see `integrity_of`."""
        return integrity_of(self.path, table, stop)

    @property
    def pages(self) -> PageSums | None:
        """Return the current file, to be copied without SQLite; None before `begin`."""
        return self._sums

    @contextmanager
    def around_checkpoint(self) -> Iterator[Callable[[int, int], None]]:
        """Enclose a checkpoint. Raises OSError before it, if the file must not be written.

        Yields a function to call with the number of frames in the WAL, and of those that were copied.
        """
        if self._sums is None:
            yield _ignore
            return
        with self._sums.around_checkpoint() as told:

            def tell(frames: int, copied: int) -> None:
                told(frames, copied)
                self._is_whole = 0 <= frames == copied  # -1: another process checkpoints

            yield tell

    def note_rest(self, writer: sqlite3.Connection, log_index: int) -> None:
        """Note, in the transaction of a change after `log_index`, that the file itself contains that entry.

        The WAL depends on that: a start detects an earlier file under it, independent of its time.
        """
        if self._is_whole:
            write_rest_note(writer, log_index)
            self._is_whole = False

    def rest(self) -> None:
        """Prepare for the end of the last connection, as the file has all commits."""
        if self._sums is not None:
            self._sums.rest()

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._sums is not None:
            self._sums.close()

    def _take_up(self) -> PageSums:
        self._sums = PageSums(self.path, StoredSums(self.path.with_name(f"{self.path.name}{SUMS}")))
        return self._sums


def _ignore(frames: int, copied: int) -> None:
    """Do nothing, as no sums are kept."""
    del frames, copied
