"""Replicas that are out of service in this process only, and losses that the disk could not record.

A disk that is read-only, full or failing accepts no move to quarantine and no note. A replica that is found
damaged on it must still be neither served nor counted, and must be reported (`node/custody/loss_repair.py`).
This module remembers it as long as the process runs; after a restart the next read finds the damage again.
Bounded; no I/O here but a look at an open file. For any thread.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from node.storage.segments import BlobDamaged

Reason = Literal["missing", "damaged"]

FILES_MAX: Final = 10_000  # on a disk with more damage, each read finds it again
LOSSES_MAX: Final = 10_000  # the comparison with the log finds further ones


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file in its place that is not served. Another file in that place has another time."""

    damage: BlobDamaged
    modified_at_ns: int

    def is_of(self, file: tuple[int, int], modified_at_ns: int) -> bool:
        """Return whether this is the file, or the record of a pack, which is written only once."""
        return file == self.damage.file and modified_at_ns == self.modified_at_ns


@dataclass(frozen=True, slots=True)
class Loss:
    """A replica that is no longer here, to be reported to the log."""

    sha256: str
    reason: Reason
    file: tuple[int, int] | None = None  # the damaged file, if it is still in its place


class OutOfService:
    """The files that this process has removed from service, and the losses that it has still to report."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, RemovedFile] = OrderedDict()
        self._losses: OrderedDict[str, Loss] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def add(self, damage: BlobDamaged, modified_at_ns: int) -> None:
        """Stop serving a damaged file in its place."""
        with self._lock:
            self._files[damage.sha256] = RemovedFile(damage, modified_at_ns)
            while len(self._files) > FILES_MAX:
                self._files.popitem(last=False)

    def covers(self, sha256: str, descriptor: int) -> bool:
        """Return whether this open file is out of service; another file with that name is not.

        Raises OSError.
        """
        if not self._files:  # as nearly always
            return False
        file = self._files.get(sha256)
        if file is None:
            return False
        facts = os.fstat(descriptor)
        if file.is_of((facts.st_dev, facts.st_ino), facts.st_mtime_ns):
            return True
        self.forget(sha256)
        return False

    def covers_packed(self, sha256: str, identity: tuple[int, int]) -> bool:
        """Return whether a record in a pack is out of service, by its position."""
        file = self._files.get(sha256) if self._files else None
        return file is not None and file.damage.file == identity

    def all(self) -> list[RemovedFile]:
        """Return the files to be moved to quarantine when the disk allows it."""
        with self._lock:
            return list(self._files.values())

    def names(self, sha256s: Collection[str]) -> list[str]:
        """Return the names whose file is in its place but not served."""
        return [sha256 for sha256 in sha256s if sha256 in self._files]

    def forget(self, sha256: str) -> None:
        """Forget a file that is no longer in its place."""
        with self._lock:
            self._files.pop(sha256, None)

    def note_loss(self, loss: Loss) -> None:
        """Note a loss to be reported; the first loss of a replica is kept."""
        with self._lock:
            if len(self._losses) < LOSSES_MAX:
                self._losses.setdefault(loss.sha256, loss)

    def losses(self, limit: int, *, besides: Collection[str] = ()) -> list[Loss]:
        """Return the losses to be reported."""
        with self._lock:
            return [loss for loss in self._losses.values() if loss.sha256 not in besides][:limit]

    def forget_losses(self, sha256s: Iterable[str]) -> None:
        """Forget losses that were reported."""
        with self._lock:
            for sha256 in sha256s:
                self._losses.pop(sha256, None)
