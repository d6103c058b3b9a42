"""The state at one entry of the log, to be read for any time, while changes continue.

It is an open read transaction of SQLite. The WAL grows as long as it is open. Blocking, except for `pin`,
which is short.

Tested by tests/unit/coordinator/storage/test_sound_snapshots.py.
"""

import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from coordinator.machine.execution.digests import whole_digest
from coordinator.raft.messages import Entry, EntryKind
from coordinator.storage.page_sums import PageSums
from coordinator.storage.state_damage import flaw_in
from metadata.protocol.commands import HashWhole, decode_envelope
from runtime.file_digests import sha256_of
from runtime.sqlite import DATABASE_ERRORS
from runtime.stopping import NEVER, Stop, WorkStopped

_WHOLE_TAG = b"hash_whole"  # avoids decoding every other entry
EXAMINED_BESIDE_BYTES_MIN: Final = 256 << 20  # some 200,000 files: seconds
MAPPED_BYTES: Final = 2 << 30  # by that process, as SIGBUS then ends only it
NICENESS: Final = 5  # of the examining process
WORK_S = 0.01  # then PAUSE_S: other threads need this processor, and Python's lock
PAUSE_S = 0.002
LOOK_S: Final = 0.1  # between two checks whether an examining process has ended


_log = logging.getLogger(__name__)


class PinnedState:
    """The state at `index`. Used by one thread at a time; its receiver closes it."""

    def __init__(self, path: Path, file: PageSums | None = None) -> None:
        """Pin the state at the last entry that was applied. Raises sqlite3.Error.

        `file`: the database file itself, if it contains all of that state (`Store.settle`), and then
        continues to.
        """
        self.file = file
        address = f"{path.absolute().as_uri()}?mode=rw"
        self.db = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
        try:
            self.db.execute("PRAGMA query_only = ON")
            self.db.execute("BEGIN")
            (self.index,) = self.db.execute("SELECT log_index FROM applied").fetchone()
        except BaseException:
            self.db.close()
            raise

    def digest(self, stop: Stop = NEVER) -> str:
        """Return the digest of all rows. Raises WorkStopped, and sqlite3.Error for unreadable ones."""
        return whole_digest(self.db, pause=make_pacer(stop))

    def digest_and_close(self, stop: Stop) -> str:
        """Return the digest of all rows, and close the state in any case."""
        with closing(self):
            return self.digest(stop)

    def close(self) -> None:
        """Release the state, so that the WAL can be reset."""
        self.db.close()


def is_whole_hash(entry: Entry) -> bool:
    """Return whether the whole state is hashed after this entry."""
    is_likely = entry.kind is EntryKind.COMMAND and _WHOLE_TAG in entry.data
    return is_likely and isinstance(decode_envelope(entry.data).command, HashWhole)


def up_to_whole_hash(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Return entries up to the first after which the whole state is hashed, and the rest."""
    for end, entry in enumerate(entries, 1):
        if is_whole_hash(entry):
            return entries[:end], entries[end:]
    return entries, []


def content_digest(path: Path, *, pause: Callable[[], None]) -> str:
    """Return the digest of all rows of a database at rest; `pause` is called often. Raises sqlite3.Error."""
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    db = sqlite3.connect(address, uri=True, isolation_level=None)
    try:
        return whole_digest(db, pause=pause)
    finally:
        db.close()


class StateExamination(Struct, frozen=True):
    """A database at rest: the fault in its structure, the digest of its rows, and that of its bytes."""

    flaw: str
    content: str
    sha256: str


def examine(path: Path, stop: Stop = NEVER) -> StateExamination:
    """Examine a database at rest.

    A large one is examined in a separate process, to leave Python's lock to requests. If that cannot be
    started, or is killed, it is done here. Raises OSError, WorkStopped.
    """
    if path.stat().st_size >= EXAMINED_BESIDE_BYTES_MIN:
        try:
            return _examine_beside(path, stop)
        except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
            _log.warning("the copy of the state is examined in this process: %s", error)
    return _examine(path, stop, pause=make_pacer(stop))


def _examine_beside(path: Path, stop: Stop) -> StateExamination:
    arguments = [sys.executable, "-P", "-m", "coordinator.storage.pinned_state", str(path)]
    # Its input ends with this process, in any case: then it ends as well.
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None, "it is a pipe"
        try:
            while child.poll() is None:
                stop.rest(LOOK_S)  # its output is short and fits the pipe
        except WorkStopped:
            child.kill()
            raise
        said = child.stdout.read()
    if child.returncode != 0:
        raise subprocess.CalledProcessError(child.returncode, arguments)
    return msgspec.json.decode(said, type=StateExamination)


def _examine(path: Path, stop: Stop, *, pause: Callable[[], None], mapped_bytes: int = 0) -> StateExamination:
    """Do three checks at the same time: each takes long, and only reads."""
    with ThreadPoolExecutor(2) as pool:
        flaw = pool.submit(flaw_in, path, at_rest=True, mapped_bytes=mapped_bytes)
        sha256 = pool.submit(sha256_of, path, stop)
        try:
            content, unreadable = content_digest(path, pause=pause), ""
        except (*DATABASE_ERRORS, ValueError, TypeError, OverflowError) as error:
            content, unreadable = "", str(error)  # a damaged page may contain values of any type
        return StateExamination(flaw.result() or unreadable, content, sha256.result())


def _no_pause() -> None:
    """Do not pause: the kernel shares the processors."""


def make_pacer(stop: Stop) -> Callable[[], None]:
    """Return a function that long work must call often: it pauses PAUSE_S after every WORK_S.

    Raises WorkStopped.
    """
    rested_s = time.monotonic()

    def pause() -> None:
        nonlocal rested_s
        if time.monotonic() - rested_s >= WORK_S:
            stop.rest(PAUSE_S)
            rested_s = time.monotonic()

    return pause


def _end_with_parent() -> None:
    """End this process with its parent, which holds the other end of its input."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> None:
    """Examine the given database, and print the result as JSON; end when the input does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(OSError):  # a service may lack the permission
        os.nice(NICENESS)
    found = _examine(Path(sys.argv[1]), NEVER, pause=_no_pause, mapped_bytes=MAPPED_BYTES)
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
