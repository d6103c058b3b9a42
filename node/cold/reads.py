"""The hours in which blobs were read: a blob that is read often stays hot, or becomes hot again.

    DIR/reads/NAME.json    of each process of the node, written now and then, and not synced

A crash loses the last hour, so a replica may turn cold too early. All calls block, but for `note`.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from node.diskio.areas import Areas
from node.diskio.fs import read_whole
from runtime.json_files import decode_sealed, encode_sealed

DIRECTORY: Final = "reads"
FLUSH_S: Final = 60.0
HOURS_KEPT: Final = 3  # of one blob: its last ones
AGE_HOURS_MAX: Final = 15 * 24
BLOBS_MAX: Final = 20_000  # of one process; those that were read longest ago are forgotten
FILE_BYTES_MAX: Final = 4 << 20

Hours = dict[str, list[int]]  # since the epoch, ascending


class ReadLog:
    """The reads of one process, and on request those of all. `note` is for any thread."""

    def __init__(self, areas: Areas, name: str, *, clock_s: Callable[[], float] = time.time) -> None:
        """Go on where the process of this name ended. Raises OSError."""
        self._directory, self._name = areas.keep_open(DIRECTORY), f"{name or 'node'}.json"
        self._clock_s = clock_s
        self._new = set[str]()
        self._flushing = threading.Lock()
        self._hours = OrderedDict(sorted(self._read(self._name).items(), key=lambda each: each[1][-1]))
        self._flushed_at_s = float("-inf")

    def note(self, sha256: str) -> None:
        """Note that a blob is read now. Does not block."""
        if len(self._new) < BLOBS_MAX:
            self._new.add(sha256)

    def flush(self, *, at_once: bool = False) -> None:
        """Write what is new, if it is time. What the disk refuses is written the next time."""
        now_s = time.monotonic()
        if self._new and (at_once or now_s - self._flushed_at_s >= FLUSH_S):
            with self._flushing:
                self._flushed_at_s = now_s
                self._flush(int(self._clock_s() // 3600))

    def all(self) -> Hours:
        """Return the hours at which each blob was read, by any process of the node. Raises OSError."""
        self.flush(at_once=True)
        found: Hours = {}
        for name in os.listdir(self._directory):
            if name.endswith(".json"):
                for sha256, hours in self._read(name).items():
                    found[sha256] = sorted({*found.get(sha256, ()), *hours})
        return found

    def _flush(self, hour: int) -> None:
        new, self._new = self._new, set()
        for sha256 in list(new):  # a name may still be added to it
            hours = self._hours.pop(sha256, [])
            self._hours[sha256] = (hours if hours and hours[-1] >= hour else [*hours, hour])[-HOURS_KEPT:]
        while len(self._hours) > BLOBS_MAX or hour - next(iter(self._hours.values()))[-1] > AGE_HOURS_MAX:
            self._hours.popitem(last=False)
        with suppress(OSError):
            self._write(encode_sealed(self._hours))

    def _read(self, name: str) -> Hours:
        try:
            raw = read_whole(name, parent=self._directory, bytes_max=FILE_BYTES_MAX)
            found = decode_sealed(raw, Hours)
        except (FileNotFoundError, msgspec.MsgspecError):
            return {}
        return {sha256: hours for sha256, hours in found.items() if hours}

    def _write(self, raw: bytes) -> None:
        part = f"{self._name}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o600, dir_fd=self._directory)
        with open(descriptor, "wb") as file:
            file.write(raw)
        os.rename(part, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
