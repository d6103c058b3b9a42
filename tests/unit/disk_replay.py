"""What a power cut may leave of a directory whose changes `tests.unit.disk_record` has recorded.

The contents of a file are durable after a sync of it, its names after a sync of their directory, and nothing
else is. Of what was not synced, each sector has any of the contents that it had since, on its own, and one
may be torn at any byte; size and time of change of the file are any that it had. `fdatasync` owes no more of
a size than the reading of what was written needs, and nothing of a time. Names that were made, changed or
removed since are there or not, each on its own: what POSIX lets a file system do. The journal of ext4 keeps
the order of names, that of others does not, and code that needs no order is right on all of them. A rename is
one step; only where it leads from one directory to another the old name may stay as well, until that
directory is synced too.

Two ends of it are tried as often as the dice: that nothing is left which was not synced, and that all is.
"""

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Final

from tests.unit.disk_record import Call, Record

SECTOR_BYTES: Final = 512
_CHUNK_BYTES: Final = 64 << 10
_ZEROS: Final = bytes(SECTOR_BYTES)


class Luck(Enum):
    """What becomes of what was not synced."""

    NOTHING = "nothing is left"
    ALL = "all is left"
    MADE = "names that were made are there, and those that were removed as well"
    GONE = "names that were removed are gone, and those that were made as well"
    DICE = "the dice decide"


_IN_TURN: Final = (Luck.GONE, Luck.MADE, Luck.NOTHING, Luck.DICE)
_SHARES: Final = {  # of the names that were made, and of those that were removed, what is left of that
    Luck.NOTHING: (0.0, 0.0),
    Luck.ALL: (1.0, 1.0),
    Luck.MADE: (1.0, 0.0),
    Luck.GONE: (0.0, 1.0),
    Luck.DICE: (0.5, 0.5),
}


class File:
    """The contents of one file: what is durable, and what each sector has been since."""

    def __init__(self, content: bytes = b"", changed_ns: int = 0) -> None:
        self._times = [changed_ns]  # of change: the durable one, those at syncs of the data, those since
        self._times_synced = 1
        self._durable: dict[int, bytes] = {}
        self._durable_bytes = self._bytes = len(content)
        self._since: dict[int, list[bytes]] = {}  # the last one is what is read now
        self._sizes: list[int] = []
        self._written_bytes = 0  # how far was written since the last sync of all
        for start in range(0, len(content), _CHUNK_BYTES):
            if (chunk := content[start : start + _CHUNK_BYTES]).strip(b"\0"):
                for sector, piece in _sectors(start, chunk):
                    self._durable[sector] = piece.ljust(SECTOR_BYTES, b"\0")

    def write(self, offset: int, data: bytes, changed_ns: int) -> None:
        for sector, piece in _sectors(offset, data):
            if len(piece) < SECTOR_BYTES:
                at = max(offset - sector * SECTOR_BYTES, 0)
                before = self._now(sector)
                piece = before[:at] + piece + before[at + len(piece) :]
            self._since.setdefault(sector, []).append(piece)
        self._written_bytes = max(self._written_bytes, offset + len(data))
        self.resize(max(self._bytes, offset + len(data)), changed_ns)

    def resize(self, size_bytes: int, changed_ns: int) -> None:
        if changed_ns != self._times[-1]:
            self._times.append(changed_ns)
        if size_bytes < self._bytes:
            self._written_bytes = min(self._written_bytes, size_bytes)
            self._zero(size_bytes)
        if size_bytes != self._bytes:
            self._sizes.append(size_bytes)
        self._bytes = size_bytes

    def _zero(self, start: int) -> None:
        """What lies behind the end is zeros if the file grows again."""
        first, at = divmod(start, SECTOR_BYTES)
        for sector in {*self._durable, *self._since}:
            if sector >= first:
                before = self._now(sector)
                keep = at if sector == first else 0
                self._since.setdefault(sector, []).append(before[:keep] + bytes(SECTOR_BYTES - keep))

    def _now(self, sector: int) -> bytes:
        if (since := self._since.get(sector)) is not None:
            return since[-1]
        return self._durable.get(sector, _ZEROS)

    def sync(self, *, is_data_alone: bool) -> None:
        for sector in list(self._since):
            if not is_data_alone or sector * SECTOR_BYTES < self._bytes:
                self._durable[sector] = self._since.pop(sector)[-1]
        if is_data_alone:
            self._durable_bytes = max(self._durable_bytes, self._written_bytes)
            self._sizes = [] if self._bytes == self._durable_bytes else [self._bytes]
            del self._times[self._times_synced : -1]
            self._times_synced = len(self._times)
        else:
            self._durable_bytes = self._bytes
            self._sizes, self._written_bytes = [], 0
            del self._times[:-1]
            self._times_synced = 1

    def left(self, luck: Luck, rand: random.Random) -> tuple[int, int, dict[int, bytes]]:
        """Its size and its time of change after a cut, and its sectors; one that is missing is zeros."""
        left = dict(self._durable)
        if luck not in (Luck.NOTHING, Luck.ALL):
            luck = rand.choice((Luck.NOTHING, Luck.ALL, Luck.DICE, Luck.DICE))
            changed_ns = rand.choice((self._times[-1], *self._times[-2:], rand.choice(self._times)))
        else:
            changed_ns = self._times[-1 if luck is Luck.ALL else 0]
        if luck is Luck.NOTHING:
            return self._durable_bytes, changed_ns, left
        if luck is Luck.ALL:
            left |= {sector: since[-1] for sector, since in self._since.items()}
            return self._bytes, changed_ns, left
        share = rand.choice((0.1, 0.5, 0.9))  # of sectors that are as they are now
        torn = rand.choice(list(self._since)) if self._since and rand.random() < 0.5 else -1
        for sector, since in self._since.items():
            before = left.get(sector, _ZEROS)
            left[sector] = since[-1] if rand.random() < share else rand.choice((before, *since))
            if sector == torn:
                at = rand.randrange(SECTOR_BYTES)
                left[sector] = since[-1][:at] + before[at:]
        size = self._bytes if rand.random() < share else rand.choice((self._durable_bytes, *self._sizes))
        return size, changed_ns, left


@dataclass(slots=True)
class _Change:
    """Of names. `made` and `gone` are paths, "" for none; each is durable by itself."""

    made: str
    gone: str
    file: File | None  # None for a directory
    is_move: bool = False
    is_made_durable: bool = False
    is_gone_durable: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """The power fails here. `notes`: what the process had said."""

    notes: list[str]
    luck: Luck
    at: int
    _files: dict[str, File | None]
    _rand: random.Random

    def put(self, target: Path, below: str = "") -> Path:
        """Make the directory, or what lies `below` a path in it, as the cut may have left it, at a path where
        nothing is; that path.
        """
        target.mkdir(mode=0o700)
        done: dict[int, Path] = {}
        for name, file in sorted(self._files.items()):
            if not name.startswith(f"{below}/"):
                continue
            path = target / name[len(below) + 1 :]
            if not path.parent.is_dir():
                continue  # the name of its directory was not durable
            if file is None:
                path.mkdir(mode=0o700, exist_ok=True)
            elif (other := done.get(id(file))) is not None:
                os.link(other, path)
            else:
                done[id(file)] = path
                _write(path, *file.left(self.luck, self._rand))
        return target


def _write(path: Path, size_bytes: int, changed_ns: int, sectors: dict[int, bytes]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        at, run = 0, list[bytes]()
        for sector in sorted(sector for sector, piece in sectors.items() if piece != _ZEROS):
            if run and sector != at + len(run):
                os.pwrite(descriptor, b"".join(run), at * SECTOR_BYTES)
                run = []
            if not run:
                at = sector
            run.append(sectors[sector])
        os.pwrite(descriptor, b"".join(run), at * SECTOR_BYTES)
        os.ftruncate(descriptor, size_bytes)
        os.utime(descriptor, ns=(changed_ns, changed_ns))
    finally:
        os.close(descriptor)


class Disk:
    """A directory, call by call."""

    def __init__(self, record: Record) -> None:
        self._base: dict[str, File | None] = {
            path: None if content is None else File(content, record.facts[path].st_mtime_ns)
            for path, content in record.files.items()
        }
        self._inodes = {
            record.facts[path].st_ino: file for path, file in self._base.items() if file is not None
        }
        self._names = dict(self._base)  # as they are now
        self._changes: list[_Change] = []
        self.notes: list[str] = []

    def play(self, call: Call) -> None:
        """What this call does."""
        match call.kind:
            case "N":
                self.notes.append(call.data.decode())
            case "W":
                self._inodes[call.inode].write(call.number, call.data, call.changed_ns)
            case "T" | "A":
                self._inodes[call.inode].resize(call.number, call.changed_ns)
            case "S" | "D":
                self._inodes[call.inode].sync(is_data_alone=call.kind == "D")
            case "Y":
                self._sync_names(call.paths[0] or "/")
            case "C":
                file = self._inodes[call.inode] = File(b"", call.changed_ns)
                self._change(_Change(call.paths[0], "", file))
            case "M":
                self._change(_Change(call.paths[0], "", None))
            case "U" | "X":
                self._change(_Change("", call.paths[0], None))
            case "L":
                self._change(_Change(call.paths[1], "", self._file(call.paths[0])))
            case "R":
                gone, made = call.paths
                self._change(_Change(made, gone, self._file(gone), is_move=True))
            case _:
                raise AssertionError(f"no such call: {call.kind}")

    def _file(self, path: str) -> File:
        file = self._names[path]
        assert file is not None, f"{path} is a directory: no act renames one"
        return file

    def _change(self, change: _Change) -> None:
        _apply(self._names, change, is_made=True, is_gone=True)
        self._changes.append(change)

    def _sync_names(self, path: str) -> None:
        for change in self._changes:
            change.is_made_durable |= _parent(change.made) == path
            change.is_gone_durable |= _parent(change.gone) == path
        while self._changes and _is_durable(self._changes[0]):
            _apply(self._base, self._changes.pop(0), is_made=True, is_gone=True)

    def cut(self, luck: Luck, rand: random.Random, at: int) -> Cut:
        """What the power leaves that fails now; valid until the next call."""
        left = dict(self._base)
        made, gone = _SHARES[luck]
        for change in self._changes:
            is_made = bool(change.made) and (change.is_made_durable or rand.random() < made)
            if change.is_move:
                is_within = _parent(change.made) == _parent(change.gone)
                is_gone = is_made and (is_within or change.is_gone_durable or rand.random() < gone)
            else:
                is_gone = bool(change.gone) and (change.is_gone_durable or rand.random() < gone)
            _apply(left, change, is_made=is_made, is_gone=is_gone)
        return Cut(list(self.notes), luck, at, left, rand)


def _is_durable(change: _Change) -> bool:
    made = change.is_made_durable or not change.made
    return made and (change.is_gone_durable or not change.gone)


def _apply(names: dict[str, File | None], change: _Change, *, is_made: bool, is_gone: bool) -> None:
    if is_gone and change.is_move:
        for name in [name for name, file in names.items() if file is change.file]:
            del names[name]
    elif is_gone:
        names.pop(change.gone, None)
    if is_made:
        names[change.made] = change.file


def _parent(path: str) -> str:
    return str(PurePosixPath(path).parent) if path else ""


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        sector, within = divmod(offset + at, SECTOR_BYTES)
        piece = data[at : at + SECTOR_BYTES - within]
        yield sector, piece
        at += len(piece)


def cuts(record: Record, seed: int, count: int, *, behind: str = "NRLU") -> Iterator[Cut]:
    """So many of them, chosen by the seed, in the order of time; each is valid until the next.

    Most come right `behind` a call of these kinds, in turn: behind promises and changes of names a missing
    sync leaves most open. The others come between any two calls that are no writes.
    """
    rand = random.Random(seed)
    calls = record.calls
    fresh = [at for at in range(1, len(calls) + 1) if calls[at - 1].kind in behind]
    others = [at for at, call in enumerate(calls) if call.kind != "W"] + [len(calls)]
    rand.shuffle(fresh)
    in_turn = itertools.cycle((at, luck) for luck in _IN_TURN for at in fresh or others)
    chosen = []
    for number in range(count):
        match number % 8:
            case 3:
                at, luck = rand.choice(others), Luck.DICE
            case 7:
                at, luck = rand.randint(0, len(calls)), Luck.ALL
            case _:
                at, luck = next(in_turn)
        chosen.append((at, number, luck))
    yield from _cuts(record, seed, sorted(chosen, key=lambda each: each[:2]))


def cuts_at(record: Record, seed: int, places: Sequence[int], luck: Luck, *, count: int) -> Iterator[Cut]:
    """`count` of them after each of these numbers of calls, ascending; each is valid until the next."""
    chosen = [(at, number, luck) for at in places for number in range(count)]
    yield from _cuts(record, seed, chosen)


def _cuts(record: Record, seed: int, chosen: Sequence[tuple[int, int, Luck]]) -> Iterator[Cut]:
    disk, played = Disk(record), 0
    for at, number, luck in chosen:
        for call in record.calls[played:at]:
            disk.play(call)
        played = at
        yield disk.cut(luck, random.Random(f"{seed} {number}"), at)
