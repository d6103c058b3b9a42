"""Damage of the database of a coordinator, which may run: pages of one table or index, as a disk does it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

PAGE_BYTES = 4096


def zero(page: bytes) -> bytes:
    """A page that was never written, or was trimmed by mistake."""
    return bytes(len(page))


def pages_of(state: Path, name: str) -> list[int]:
    """The numbers of the pages that hold a table or index, in the database of a process that runs."""
    with closing(sqlite3.connect(f"{state.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return [page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = ?", (name,))]


def spoil(state: Path, name: str, change: Callable[[bytes], bytes] = zero) -> None:
    """Change every page of a table or index behind the back of the process that has it open."""
    pages = pages_of(state, name)
    with state.open("r+b", buffering=0) as file:
        for page in pages:
            file.seek((page - 1) * PAGE_BYTES)
            before = file.read(PAGE_BYTES)
            file.seek((page - 1) * PAGE_BYTES)
            file.write(change(before))


def rows_of(state: Path, table: str) -> int:
    """How many rows a table has, in the database of a process that runs."""
    with closing(sqlite3.connect(f"{state.absolute().as_uri()}?mode=ro", uri=True)) as db:
        return int(db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])
