"""What is done to files of a member that is down. One seed decides which file is hit, and how.

As a disk does: a bit flips, a page is that of an earlier state, two pages lie in each other's place. As a
disk, a file system or a person does: a file is that of an earlier state, two files are exchanged. The earlier
state is a copy of the same directory that was taken some changes ago; a file that it lacks is gone.
"""

import os
import random
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
WHOLE: Final = 1 << 60  # the end of any file
SQLITE_WEIGHT: Final = 4  # a database has many pages, and each is another case
_IDS: Final = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # a UUID
    r"|[0-9a-f]{64}|\b[0-9a-f]{16}\b|\b[0-9a-f]{2}(?=/)|(?<![a-z])\d+"
)


@dataclass(frozen=True, slots=True)
class Harm:
    """One thing that was done: `spans` are the bytes that may be others now, by file."""

    act: str
    kind: str
    spans: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        places = ", ".join(
            f"{name}[{start}:{'' if stop == WHOLE else stop}]" for name, start, stop in self.spans
        )
        return f"{self.act} {places}"

    def touches(self, name: str, start: int = 0, stop: int = WHOLE) -> bool:
        """Whether any of these bytes of a file may be others."""
        return any(name == hit and start < last and first < stop for hit, first, last in self.spans)


@dataclass(frozen=True, slots=True)
class _Scene:
    """A file that is to be hit: below `target`, with what `older` had, and the others of its kind."""

    dice: random.Random
    target: Path
    older: Path
    name: str
    siblings: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.target / self.name

    def spans(self, *spans: tuple[int, int]) -> tuple[tuple[str, int, int], ...]:
        return tuple((self.name, start, stop) for start, stop in spans)


_Spans = tuple[tuple[str, int, int], ...]
_Act = Callable[[_Scene], _Spans]


def kind_of(name: str) -> str:
    """The name of a file without what tells it from others of its kind."""
    return _IDS.sub("*", name)


def kinds_in(directory: Path) -> dict[str, list[str]]:
    """Every file that holds something, by its kind; names are relative."""
    found: dict[str, list[str]] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size:
            name = path.relative_to(directory).as_posix()
            found.setdefault(kind_of(name), []).append(name)
    return found


def harm(dice: random.Random, target: Path, older: Path) -> Harm:
    """Harm one file below `target`."""
    kinds = kinds_in(target)
    weights = [SQLITE_WEIGHT if ".sqlite" in kind else 1 for kind in kinds]
    while True:
        (kind,) = dice.choices(list(kinds), weights)
        name = dice.choice(kinds[kind])
        scene = _Scene(dice, target, older, name, tuple(each for each in kinds[kind] if each != name))
        act = dice.choice(list(ACTS))
        if spans := ACTS[act](scene):
            return Harm(act, kind, spans)


def _flip(scene: _Scene) -> _Spans:
    """One bit is another, in a part of the file that was written."""
    content = scene.path.read_bytes()
    written = [at for at in range(0, len(content), SECTOR_BYTES) if any(content[at : at + SECTOR_BYTES])]
    if not written:
        return ()
    start = scene.dice.choice(written)
    at = scene.dice.randrange(start, min(start + SECTOR_BYTES, len(content)))
    _overwrite(scene.path, at, bytes([content[at] ^ 1 << scene.dice.randrange(8)]))
    return scene.spans((at, at + 1))


def _stale_page(scene: _Scene) -> _Spans:
    """A write of one page was lost: there is what was there before, or nothing."""
    content, before = scene.path.read_bytes(), _content(scene.older / scene.name)
    pages = [
        at
        for at in range(0, len(content), PAGE_BYTES)
        if content[at : at + PAGE_BYTES] != _page(before, at, len(content))
    ]
    if not pages:
        return ()
    at = scene.dice.choice(pages)
    _overwrite(scene.path, at, _page(before, at, len(content)))
    return scene.spans((at, at + PAGE_BYTES))


def _exchanged_pages(scene: _Scene) -> _Spans:
    """Two pages of a file lie in each other's place."""
    content = scene.path.read_bytes()
    pages = [
        at for at in range(0, len(content) - PAGE_BYTES + 1, PAGE_BYTES) if any(content[at : at + PAGE_BYTES])
    ]
    if len(pages) < 2:
        return ()
    one, other = scene.dice.sample(pages, 2)
    _overwrite(scene.path, one, content[other : other + PAGE_BYTES])
    _overwrite(scene.path, other, content[one : one + PAGE_BYTES])
    return scene.spans((one, one + PAGE_BYTES), (other, other + PAGE_BYTES))


def _stale_file(scene: _Scene) -> _Spans:
    """The file is that of an earlier state, with its time or with that of the file that lay there."""
    before = scene.older / scene.name
    if not before.exists():
        scene.path.unlink()
        return scene.spans((0, WHOLE))
    if before.read_bytes() == scene.path.read_bytes():
        return ()
    facts = scene.path.stat()
    scene.path.chmod(0o600)
    shutil.copy2(before, scene.path)
    if scene.dice.random() < 0.5:
        os.utime(scene.path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    return scene.spans((0, WHOLE))


def _exchanged_files(scene: _Scene) -> _Spans:
    """Each of two files has the name of the other."""
    if not scene.siblings:
        return ()
    other = scene.dice.choice(scene.siblings)
    if (scene.target / other).read_bytes() == scene.path.read_bytes():
        return ()
    aside = scene.target / "aside"
    scene.path.rename(aside)
    (scene.target / other).rename(scene.path)
    aside.rename(scene.target / other)
    return (*scene.spans((0, WHOLE)), (other, 0, WHOLE))


ACTS: Final[Mapping[str, _Act]] = {
    "flip": _flip,
    "stale page": _stale_page,
    "exchanged pages": _exchanged_pages,
    "stale file": _stale_file,
    "exchanged files": _exchanged_files,
}


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _page(content: bytes, at: int, size_bytes: int) -> bytes:
    """A page of what was there before, as far as the file reaches now; zeros where nothing was."""
    stop = min(at + PAGE_BYTES, size_bytes)
    return content[at:stop].ljust(stop - at, b"\0")


def _overwrite(path: Path, at: int, content: bytes) -> None:
    """Write there as a disk does: the time of the file stays."""
    facts = path.stat()
    path.chmod(facts.st_mode & 0o777 | 0o200)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    path.chmod(facts.st_mode & 0o777)
