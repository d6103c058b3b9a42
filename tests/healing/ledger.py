"""What clients did and were told: contents made from the seed, and the files that name them. No I/O here."""

import collections
import math
import random
import threading
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

SIZE_BYTES_MIN, SIZE_BYTES_MAX = 4 << 10, 13 << 20


@dataclass(frozen=True)
class Content:
    """Bytes that the seed and a number decide; small ones are as likely as large ones."""

    seed: int
    number: int

    @cached_property
    def size_bytes(self) -> int:
        """Between the bounds, even by its logarithm."""
        dice = random.Random(f"{self.seed} size {self.number}")
        return int(math.exp(dice.uniform(math.log(SIZE_BYTES_MIN), math.log(SIZE_BYTES_MAX))))

    @cached_property
    def sha256(self) -> str:
        """Of the bytes."""
        return sha256(self.bytes()).hexdigest()

    def bytes(self) -> bytes:
        """Made anew each time."""
        return random.Random(f"{self.seed} bytes {self.number}").randbytes(self.size_bytes)


@dataclass
class File:
    """A record that a client made, and what it knows of it. For one client at a time, but for reads."""

    file_uuid: str
    content: Content
    is_stored: bool = False  # the upload was acknowledged
    acknowledged_bytes: int = 0  # of an upload that is not finished: nothing less may ever be told
    is_deletion_asked: bool = False
    is_deleted: bool = False  # the deletion was acknowledged


@dataclass
class Ledger:
    """All files of a run; several threads write."""

    seed: int
    files: dict[str, File] = field(default_factory=dict)
    contents: list[Content] = field(default_factory=list)
    parts: list[File] = field(default_factory=list)  # uploads that were left off, and nobody goes on with now
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def new_content(self) -> Content:
        """One that nobody has uploaded."""
        content = Content(self.seed, len(self.contents))
        self.contents.append(content)
        return content

    def add(self, file: File) -> None:
        """A record was made."""
        with self._lock:
            self.files[file.file_uuid] = file

    def leave(self, file: File) -> None:
        """An upload is left off: somebody may go on with it later."""
        with self._lock:
            self.parts.append(file)

    def take_part(self, dice: random.Random) -> File | None:
        """One of these, for the caller alone."""
        with self._lock:
            return self.parts.pop(dice.randrange(len(self.parts))) if self.parts else None

    def stored(self) -> list[File]:
        """Files that must be there, in the order of their names."""
        with self._lock:
            found = [file for file in self.files.values() if file.is_stored and not file.is_deletion_asked]
        return sorted(found, key=lambda file: file.file_uuid)

    def count(self, outcome: str) -> None:
        """One more of these."""
        with self._lock:
            self.outcomes[outcome] += 1

    def fault(self, text: str) -> None:
        """What must not happen has happened."""
        with self._lock:
            self.faults.append(text)
