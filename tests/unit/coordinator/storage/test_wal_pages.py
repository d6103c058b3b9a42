"""The pages of a WAL: each frame is read once, and none is missed that a checkpoint may write."""

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.storage import state_store
from coordinator.storage.state_store import Store
from coordinator.storage.wal_pages import WalPages
from tests.unit.state import ADMIN, State, create

PAGE_BYTES = 4096


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as opened:
        for setting in ("journal_mode = WAL", "wal_autocheckpoint = 0", "cache_size = 10"):
            opened.execute(f"PRAGMA {setting}")
        opened.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, value BLOB)")
        opened.executemany("INSERT INTO t VALUES (?, zeroblob(900))", ((key,) for key in range(400)))
        yield opened


def checkpoint(db: sqlite3.Connection) -> tuple[int, int]:
    _, frames, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return frames, copied


def changed_pages(before: bytes, after: bytes) -> set[int]:
    return {
        at // PAGE_BYTES + 1
        for at in range(0, len(after), PAGE_BYTES)
        if before[at : at + PAGE_BYTES] != after[at : at + PAGE_BYTES]
    }


@pytest.mark.parametrize("seed", range(8))
def test_every_page_that_a_checkpoint_writes_was_named_before(
    db: sqlite3.Connection, tmp_path: Path, seed: int
) -> None:
    chance, pages = random.Random(seed), WalPages(f"{tmp_path / 'db'}-wal")
    readers: list[sqlite3.Connection] = []
    for _ in range(60):
        act = chance.choice(["commit", "commit", "roll back", "read", "end", "checkpoint", "checkpoint"])
        if act in ("commit", "roll back"):
            db.execute("BEGIN")
            for key in chance.sample(
                range(400), chance.randrange(1, 120)
            ):  # more than the cache holds: spilled
                db.execute("UPDATE t SET value = randomblob(900) WHERE key = ?", (key,))
            db.execute("COMMIT" if act == "commit" else "ROLLBACK")
        elif act == "read" and len(readers) < 3:
            readers.append(sqlite3.connect(tmp_path / "db", isolation_level=None))
            readers[-1].execute("BEGIN")
            readers[-1].execute("SELECT COUNT(*) FROM t").fetchone()
        elif act == "end" and readers:
            readers.pop(0).close()
        else:
            named, before = pages.pending_pages(), (tmp_path / "db").read_bytes()
            written = pages.note_checkpoint(*checkpoint(db))
            assert changed_pages(before, (tmp_path / "db").read_bytes()) <= written <= named
    for reader in readers:
        reader.close()


def test_frames_that_were_read_are_not_read_again_while_a_reader_holds_the_wal(
    db: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, reads = WalPages(f"{tmp_path / 'db'}-wal"), 0
    pages.pending_pages()
    pages.note_checkpoint(*checkpoint(db))
    pread = os.pread

    def counted(file: int, count: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        return pread(file, count, offset)

    monkeypatch.setattr(os, "pread", counted)
    with closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM t").fetchone()
        for key in range(200):
            db.execute("UPDATE t SET value = randomblob(900) WHERE key = ?", (key,))
            pages.pending_pages()
            pages.note_checkpoint(*checkpoint(db))
    assert reads < 200 * 8


def test_checkpoints_are_rarer_while_a_reader_holds_the_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_store, "CHECKPOINT_CHANGES", 300)
    with closing(Store(tmp_path / "state.sqlite")) as store:
        state = State.over_store(tmp_path / "state.sqlite", store)
        checkpoints: list[str] = []
        store._writer.set_trace_callback(
            lambda sql: checkpoints.append(sql) if "wal_checkpoint" in sql else None
        )

        def rounds_to_checkpoint() -> int:
            begun, rounds = len(checkpoints), 0
            while len(checkpoints) == begun:
                rounds += 1
                state.apply_batch(*(create(ADMIN, f"{rounds}-{len(checkpoints)}-{n}") for n in range(5)))
            return rounds

        free = rounds_to_checkpoint()
        with closing(sqlite3.connect(state.path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT 1 FROM files LIMIT 1").fetchone()
            held = [rounds_to_checkpoint() for _ in range(3)]
        assert held[-1] >= 3 * free
        rounds_to_checkpoint()
        assert free - 1 <= rounds_to_checkpoint() <= free + 1
