"""Damage of the database of a coordinator, which may run: pages of one table or index, as a disk does it."""

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

PAGE_BYTES = 4096
COPY_S = 60.0
_OPEN: list[int] = []  # for the life of the process


def zero(page: bytes) -> bytes:
    """A page that was never written, or was trimmed by mistake."""
    return bytes(len(page))


def pages_of(state: Path, name: str) -> list[int]:
    """The numbers of the pages that hold a table or index, in the database of a process that runs."""
    with closing(sqlite3.connect(f"{state.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return [page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = ?", (name,))]


def spoil(state: Path, name: str, change: Callable[[bytes], bytes] = zero) -> None:
    """Change every page of a table or index."""
    pages = pages_of(state, name)
    with as_a_disk_does(state) as file:
        for page in pages:
            before = os.pread(file, PAGE_BYTES, (page - 1) * PAGE_BYTES)
            os.pwrite(file, change(before), (page - 1) * PAGE_BYTES)


@contextmanager
def as_a_disk_does(state: Path) -> Iterator[int]:
    """The file, to be written behind the back of who has it open. Its time stays.

    In the process that has it open the descriptor stays open: to close it would end the locks of SQLite.
    """
    times = state.stat()
    file = os.open(state, os.O_RDWR | os.O_CLOEXEC)
    _OPEN.append(file)
    yield file
    os.utime(state, ns=(times.st_atime_ns, times.st_mtime_ns))


def rows_of(state: Path, table: str) -> int:
    """How many rows a table has, in the database of a process that runs."""
    with closing(sqlite3.connect(f"{state.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return int(db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])


def flip(page: bytes) -> bytes:
    """One bit in the last byte, which is in the first row or key of a leaf: rows grow from the end."""
    return page[:-1] + bytes([page[-1] ^ 1])


def swap_pages(state: Path, first: int, second: int) -> None:
    """Each lies where the other one was."""
    with as_a_disk_does(state) as file:
        pages = [os.pread(file, PAGE_BYTES, (number - 1) * PAGE_BYTES) for number in (first, second)]
        os.pwrite(file, pages[1], (first - 1) * PAGE_BYTES)
        os.pwrite(file, pages[0], (second - 1) * PAGE_BYTES)


def place_of_row(path: Path, table: str, value: str) -> int:
    """The offset of this text in the table itself: not in an index, nor in what a page has left unused.

    By a copy that another process makes: to close a descriptor of the database drops SQLite's locks on it.
    """
    copy = path.with_name("place.sqlite")
    subprocess.run(["cp", str(path), str(copy)], check=True, timeout=COPY_S)
    content = bytearray(copy.read_bytes())
    at = content.find(value.encode())
    while at >= 0:
        content[at] ^= 0x20  # another case of the letter
        copy.write_bytes(content)
        content[at] ^= 0x20
        with closing(sqlite3.connect(f"{copy.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            # All columns: one alone would be read from an index.
            if not any(value in row for row in db.execute(f"SELECT * FROM {table}").fetchall()):
                copy.unlink()
                return at
        at = content.find(value.encode(), at + 1)
    raise AssertionError(f"{value} lies nowhere in {path}")
