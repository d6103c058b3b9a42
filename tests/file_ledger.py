"""What clients of random programs were told of their files, and what none may read then. No I/O here."""

import collections
import random
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from tests.seeded_content import SeededContent, even_by_logarithm

SIZE_BYTES_MIN, SIZE_BYTES_MAX = 4 << 10, 13 << 20
GONE: Final = frozenset({404, 410})


class Content(SeededContent):
    """Small ones are as likely as large ones."""

    def _size(self, dice: random.Random) -> float:
        return even_by_logarithm(dice, SIZE_BYTES_MIN, SIZE_BYTES_MAX)


@dataclass
class File:
    """A record that a client made, and what it knows of it. For one client at a time, but for reads."""

    file_uuid: str
    content: SeededContent
    is_stored: bool = False  # the upload was acknowledged
    acknowledged_bytes: int = 0  # of an upload that is not finished: nothing less may ever be told
    is_deletion_asked: bool = False
    is_deleted: bool = False  # the deletion was acknowledged

    def wrong_with(self, status: int, body: bytes, *, was_deleted: bool) -> str:
        """What must not be read of a stored file; "" for nothing. `was_deleted`: when it was asked for."""
        if status in GONE:
            return "" if self.is_deletion_asked else f"{status}, and nobody has deleted it"
        if status == 200 and was_deleted:
            return "it is there, and its deletion was acknowledged"
        if status == 200 and len(body) != self.content.size_bytes:
            return f"{len(body)} of {self.content.size_bytes} bytes"
        if status == 200 and sha256(body).hexdigest() != self.content.sha256:
            return "wrong bytes"
        return ""


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
