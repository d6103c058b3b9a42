"""The second copy of a member's promises: its term and its vote, next to the segments of its log.

Raft relies on members that never forget them, and the newest are only at the end of the log. A disk that
loses this end loses the vote too, without any sign, as a log may end anywhere. So term and vote are also in a
separate file, written after the log has synced them and before they are sent: anything in the file that the
log lacks was lost. The file also has other facts that a start needs and cannot find in the log: the snapshot
that is being installed, and the term up to which this member has forgotten its promises.

The file has two slots with a checksum each, written in turn and in place, so that it needs one sync, no room,
and a torn write leaves the other. It is the disk format and never changes but by its version.

Tested by tests/unit/coordinator/storage/test_reopening.py.
"""

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Final

from coordinator.raft.messages import HardState
from coordinator.storage.log_directory import Directory, File
from runtime.disk import NO_ROOM_ERRORS

NAME: Final = "promises"
SLOTS: Final = 2
SLOT_BYTES: Final = 512  # a sector: never torn on most disks
_MAGIC: Final = b"FSTRVOW\n"
_VERSION: Final = 1
_VOTE_BYTES_MAX: Final = SLOT_BYTES - 64
_HEAD: Final = struct.Struct(
    "<8sIQQQQQH"
)  # magic, version, number, term, lost term, install index, term, vote
_CRC: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class PromiseRecord:
    """The promises of a member.

    `lost_term`: it has lost its votes and acknowledgements of terms up to this one, 0 for none. `installing`:
    index and term of the snapshot whose installation began, (0, 0) for none.
    """

    term: int = 0
    vote: str = ""
    lost_term: int = 0
    installing: tuple[int, int] = (0, 0)

    def is_ahead_of(self, hard_state: HardState) -> bool:
        """Return whether a log with this hard state has lost its end."""
        if self.term != hard_state.term:
            return self.term > hard_state.term
        return self.vote not in ("", hard_state.vote)


class Promises:
    """The file in the directory of a log. One thread writes it."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._file: File | None = None
        self._number = 0
        self.newest = PromiseRecord()

    def open(self) -> None:
        """Read the file of the previous process, and make it durable.

        That process may have been killed before its sync, and what is read here is not written again. A
        damaged slot counts as empty. Raises OSError.
        """
        if NAME not in self._directory.names():
            return
        self._file = self._directory.open(NAME)
        self._file.sync()
        self._directory.sync()
        for slot in range(SLOTS):
            found = _decode(self._file.read(slot * SLOT_BYTES, SLOT_BYTES))
            if found is not None and found[0] > self._number:
                self._number, self.newest = found

    def keep(self, hard_state: HardState) -> None:
        """Store new promises, durable on return; the log has them already. Raises OSError."""
        if (hard_state.term, hard_state.vote) != (self.newest.term, self.newest.vote):
            self.write(replace(self.newest, term=hard_state.term, vote=hard_state.vote))

    def write(self, promised: PromiseRecord) -> None:
        """Store promises, durable on return; skipped if there is no room to create the file.

        Raises OSError.
        """
        if self._file is None and not self._make():
            return
        assert self._file is not None, "the file was made"
        # A member that has forgotten must not forget that: then both slots say so.
        for _ in range(SLOTS if promised.lost_term != self.newest.lost_term else 1):
            self._number += 1
            self._file.write(self._number % SLOTS * SLOT_BYTES, _encode(self._number, promised))
            self._file.sync()
        self.newest = promised

    def _make(self) -> bool:
        unfinished = f"{NAME}.new"
        try:
            file = self._directory.create(unfinished)
            try:
                file.allocate(SLOTS * SLOT_BYTES)
                file.write(0, bytes(SLOTS * SLOT_BYTES))
                file.sync()
                self._directory.rename(unfinished, NAME)
                self._directory.sync()
            except OSError:
                file.close()
                raise
        except OSError as error:
            if error.errno not in NO_ROOM_ERRORS:
                raise
            return False
        self._file = file
        return True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _encode(number: int, promised: PromiseRecord) -> bytes:
    vote = promised.vote.encode()
    assert len(vote) <= _VOTE_BYTES_MAX, "a member's id has bounds"
    facts = (promised.term, promised.lost_term, *promised.installing, len(vote))
    body = _HEAD.pack(_MAGIC, _VERSION, number, *facts) + vote
    body = body.ljust(SLOT_BYTES - _CRC.size, b"\0")
    return body + _CRC.pack(zlib.crc32(body))


def _decode(slot: bytes) -> tuple[int, PromiseRecord] | None:
    """Return number and content of a slot; None for one that is damaged or was never written."""
    if len(slot) != SLOT_BYTES or _CRC.unpack(slot[-_CRC.size :])[0] != zlib.crc32(slot[: -_CRC.size]):
        return None
    magic, version, number, term, lost_term, index, index_term, vote_bytes = _HEAD.unpack_from(slot)
    if magic != _MAGIC or version != _VERSION or vote_bytes > _VOTE_BYTES_MAX:
        return None
    vote = slot[_HEAD.size : _HEAD.size + vote_bytes].decode(errors="replace")
    return number, PromiseRecord(term, vote, lost_term, (index, index_term))
