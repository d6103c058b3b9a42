"""Which directory and which start of it a node's process is. Shared by server, workers, announcement.

See `coordinator/admission.py`. A directory can be copied while its node runs, or restored from a copy later:
both have the same certificate. So each start is counted in the directory, and reported to the coordinators.
The locked file notes the process that locked it, and the place of the file. If the next process locks the
same file on the same machine since it was booted, the earlier process has ended, and need not be waited for.
A copy has another place.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from metadata.rpc.instances import count_start, parse_instance
from runtime.json_files import decode_foreign

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
NOTE_BYTES_MAX: Final = 1024
ENDED_MAX: Final = 16  # processes in a note

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """`instance` as it is reported, "" if the disk cannot store it. `ended`: processes that are gone."""

    instance: str = ""
    ended: tuple[str, ...] = ()

    def ended_predecessor(self, speaker: str) -> str:
        """Return the process of the instance `speaker` in the log if that has ended, otherwise ""."""
        process = parse_instance(speaker).process if speaker else ""
        return process if process in self.ended else ""


class _Note(Struct, frozen=True):
    """The current holder of the lock of a file in this place, and its previous holders.

    All of them are kept, as a process that ended early may never have announced itself to the log.
    """

    place: str
    process: str
    ended: list[str] = []


def begin(path: Path, node_id: str, lock: int) -> Start:
    """Count one more start. `lock`: the descriptor of the file that this process has locked. Blocks."""
    place, ended = _place(lock), _ended(lock)
    instance = count_start(path, node_id)
    if instance is None:
        return Start()
    try:
        note = msgspec.json.encode(_Note(place, instance.process, ended))
        os.pwrite(lock, note, 0)
        os.ftruncate(lock, len(note))
    except OSError as error:
        _log.warning("cannot record that this process has ended", extra={"reason": error.strerror})
    return Start(str(instance), tuple(ended))


def _ended(lock: int) -> list[str]:
    """Return the last processes that held the lock of this file, oldest first; none if unknown."""
    try:
        note = decode_foreign(os.pread(lock, NOTE_BYTES_MAX, 0), _Note)
    except (OSError, msgspec.MsgspecError):
        return []
    return [*note.ended, note.process][-ENDED_MAX:] if note.place == _place(lock) else []


def _place(lock: int) -> str:
    """Identify the file: its machine since the last boot, and its inode."""
    facts = os.fstat(lock)
    try:
        booted = BOOT_ID.read_text("ascii").strip()
    except OSError:
        booted = "-"
    return f"{booted}:{facts.st_dev}:{facts.st_ino}"
