"""The state of a coordinator with many files, written beside the product, which would take a day for it.

`fill` writes into the database of a coordinator that is at rest, and does what as many commands would have
done: 20 owners, up to 300 buckets that are shared with groups, half of the files of projects, the others
backups and machines, one blob for each with three replicas on five nodes, some with permissions, links and an
end. Rows come in the order of their tables' keys and indexes after them, which is what makes it quick: about
a minute for 10^6 files. Names and sizes follow from the number of a file, so that others find them.
"""

import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Final

from metadata.model.records import BACKUP, PROJECT_FILE, VM

OWNERS: Final = 20
BUCKETS_OF_OWNER_MAX: Final = 15
PROJECTS_MAX: Final = 1000
PART_FILES: Final = 500  # of a bucket, or a project, at least: pages of lists are full in small states too
PREFIXES: Final = 400
NODES: Final = 5
REPLICAS: Final = 3
CREATED_AT_MS: Final = 1_750_000_000_000
_BUCKET_COLUMNS: Final = (
    "(bucket_id, name, owner_id, quota_bytes, used_bytes, file_count, created_at_ms, updated_at_ms, sequence)"
)
_FILL_TOTALS: Final = (
    "INSERT INTO blob_totals (one, blobs, bytes)"
    " SELECT 1, COUNT(*), COALESCE(SUM(size_bytes), 0) FROM blobs WHERE reference_count > 0"
)
_FILL_REPLICA_TOTALS: Final = (
    "INSERT INTO replica_totals (node_id, replicas, doomed)"
    " SELECT node_id, COUNT(*), COUNT(doomed_at) FROM blob_replicas GROUP BY node_id"
)
_DIGITS: Final = (1 << 192) - 1
_MIX: Final = 0x9E3779B97F4A7C15F39CC0605CEDC8349D3F4F9A51C1B3E5  # odd, else anything


def uuid_of(number: int) -> str:
    """The file_uuid of a file: they rise, as those that the product makes do."""
    ms, rest = CREATED_AT_MS + number, (number * _MIX) & ((1 << 62) - 1)
    digits = f"{ms:012x}7{rest >> 50:03x}{0x8000 | (rest >> 36) & 0x3FFF:04x}{rest & 0xFFF_FFFF_FFFF:012x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def owner_of(number: int) -> str:
    """The user that a file belongs to."""
    return f"owner-{number * 7919 % OWNERS:02d}"


def bucket_of(number: int, count: int) -> str:
    """The id of the bucket that a file is in, of `count` files: one of its owner's."""
    return _bucket(number * 7919 % OWNERS + OWNERS * (number // OWNERS % _buckets_of_owner(count)))


def project_of(number: int, count: int) -> str:
    """The project that a file of one belongs to."""
    return f"project-{number // 50 % projects(count):04d}"


def projects(count: int) -> int:
    """How many there are."""
    return min(PROJECTS_MAX, max(count // (2 * PART_FILES), 1))


def _buckets_of_owner(count: int) -> int:
    return min(BUCKETS_OF_OWNER_MAX, max(count // (OWNERS * PART_FILES), 1))


def kind_of(number: int) -> str:
    """Five of ten are files of projects, four are backups, one is a machine."""
    return (PROJECT_FILE, BACKUP)[number % 10 >= 5] if number % 10 < 9 else VM


class _Contents:
    """Which blob each file refers to. They are numbered in the order of their sha256."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._step = (1 << 64) // count
        self._stride = next(
            n for n in range(int(count * 0.618) | 1, 2 * count + 3) if math.gcd(n, count) == 1
        )

    def of_file(self, number: int) -> int:
        """As good as random, so that one file after the other finds no neighbours."""
        return number * self._stride % self._count

    def sha256(self, number: int) -> str:
        return f"{number * self._step:016x}{number * _MIX & _DIGITS:048x}"

    def size_bytes(self, number: int) -> int:
        return 4096 + number * 37 % 60_000


def fill(
    state: Path, count: int, node_ids: Sequence[str], say: Callable[[str], None] = print
) -> tuple[int, int, int]:
    """Add `count` files to a state at rest, behind its last entry.

    The sequence of the first of them, and of the state then the last entry and its term.
    """
    assert len(node_ids) == NODES, f"{NODES} nodes hold the replicas"
    schema = files("coordinator.storage").joinpath("schema.sql").read_text("utf-8")
    with closing(sqlite3.connect(state, isolation_level=None)) as db:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -1000000", "threads = 2"):
            db.execute(f"PRAGMA {setting}")
        begun = "SELECT type, name FROM sqlite_schema WHERE type IN ('index', 'trigger') AND sql IS NOT NULL"
        for kind, name in db.execute(begun).fetchall():
            db.execute(f"DROP {kind} {name}")
        first, term = db.execute("SELECT log_index + 1, term FROM applied").fetchone()
        for table, rows in _tables(count, first, node_ids):
            say(table)
            _insert(db, table, rows)
        say("indexes")
        db.executescript(schema)
        db.execute("DELETE FROM blob_totals")
        db.execute("DELETE FROM replica_totals")
        db.execute(_FILL_TOTALS)
        db.execute(_FILL_REPLICA_TOTALS)
        db.execute("UPDATE applied SET log_index = ?", (first + count,))
        db.execute("PRAGMA journal_mode = WAL")
    return first, first + count, term


def _insert(db: sqlite3.Connection, table: str, rows: Iterator[tuple[object, ...]]) -> None:
    row = next(rows)
    name, _, columns = table.partition(" ")
    marks = ", ".join("?" * len(row))
    statement = f"INSERT INTO {name} {columns} VALUES ({marks})"
    db.execute("BEGIN")
    db.execute(statement, row)
    db.executemany(statement, rows)
    db.execute("COMMIT")


def _tables(
    count: int, first: int, node_ids: Sequence[str]
) -> Iterator[tuple[str, Iterator[tuple[object, ...]]]]:
    """Each with its rows, in the order of its primary key."""
    contents = _Contents(count)
    at_ms = CREATED_AT_MS
    yield (
        "users",
        ((f"owner-{n:02d}", "[]", f'["group-{n % 4}"]', 1, 0, at_ms, at_ms, 1, 0) for n in range(OWNERS)),
    )
    yield f"buckets {_BUCKET_COLUMNS}", _buckets(count, contents)
    yield (
        "bucket_permissions",
        (
            (n + 1, f"p-{n}", _bucket(n), f"group:group-{n % 4}", 1, "admin", at_ms, None)
            for n in range(OWNERS * _buckets_of_owner(count))
        ),
    )
    yield "files", (_file(n, count, first, contents) for n in range(count))
    yield (
        "project_files",
        (_project_file(n, count, first) for n in range(count) if kind_of(n) == PROJECT_FILE),
    )
    yield "vms", (_vm(n, first) for n in range(count) if kind_of(n) == VM)
    yield "backups", (_backup(n, first) for n in range(count) if kind_of(n) == BACKUP)
    yield (
        "manifests",
        ((first + n, f'{{"format": "gns3", "nodes": {n % 40}}}') for n in range(0, count, 20)),
    )
    yield (
        "file_permissions",
        (
            (
                first + n,
                f"f-{n}",
                first + n,
                bucket_of(n, count),
                f"user:{owner_of(n + 1)}",
                1,
                "admin",
                at_ms,
                None,
            )
            for n in range(0, count, 100)
        ),
    )
    yield (
        "public_tokens",
        (
            (first + n, f"t-{n}", f"{n * _MIX & _DIGITS:064x}", first + n, owner_of(n), at_ms, at_ms << 1, 0)
            for n in range(0, count, 1000)
        ),
    )
    yield (
        "blobs",
        ((contents.sha256(n), contents.size_bytes(n), 1, None, None, 0, "") for n in range(count)),
    )
    yield "blob_replicas", _replicas(count, contents, node_ids)


def _bucket(number: int) -> str:
    return f"00000000-0000-7000-8000-{number:012x}"


def _buckets(count: int, contents: _Contents) -> Iterator[tuple[object, ...]]:
    used: dict[str, int] = {_bucket(n): 0 for n in range(OWNERS * _buckets_of_owner(count))}
    held = dict(used)
    for number in range(count):
        bucket_id = bucket_of(number, count)
        used[bucket_id] += contents.size_bytes(contents.of_file(number))
        held[bucket_id] += 1
    for at, bucket_id in enumerate(used):
        quota_bytes = 1 << 50 if at % 2 else 0
        yield (
            *(bucket_id, f"bucket-{at}", f"owner-{at % OWNERS:02d}", quota_bytes, used[bucket_id]),
            *(held[bucket_id], CREATED_AT_MS, CREATED_AT_MS, 1),
        )


def _file(number: int, count: int, first: int, contents: _Contents) -> tuple[object, ...]:
    blob = contents.of_file(number)
    at_ms = CREATED_AT_MS + number
    retention_hours = 100_000 if number % 100 == 0 else None
    due_at_ms = None if retention_hours is None else at_ms + retention_hours * 3_600_000
    return (
        *(first + number, uuid_of(number), kind_of(number), bucket_of(number, count), owner_of(number)),
        *(f"site-{number // 97 % PREFIXES:03d}/config-{number}.gns3", "application/octet-stream"),
        *(contents.size_bytes(blob), "", contents.sha256(blob), "available", retention_hours),
        *(at_ms, at_ms, at_ms, -1, due_at_ms),
    )


def _project_file(number: int, count: int, first: int) -> tuple[object, ...]:
    return (
        *(first + number, uuid_of(number), owner_of(number), project_of(number, count), "A lab"),
        *(f"v{number % 50}", "zstd", 0, 0, 0, 0, 0),
    )


def _vm(number: int, first: int) -> tuple[object, ...]:
    md5 = f"{number * _MIX & ((1 << 128) - 1):032x}"
    return (first + number, uuid_of(number), owner_of(number), "qemu", "qcow2", 2, 2048, md5, "{}")


def _backup(number: int, first: int) -> tuple[object, ...]:
    is_full = number % 50 < 10
    parent = "" if is_full else uuid_of(number - number % 50 + 5)
    kind = "full" if is_full else "incremental"
    return (first + number, uuid_of(number), owner_of(number), kind, 1, 0, parent, "")


def _replicas(count: int, contents: _Contents, node_ids: Sequence[str]) -> Iterator[tuple[object, ...]]:
    holders = [sorted(node_ids[(at + n) % NODES] for n in range(REPLICAS)) for at in range(NODES)]
    for number in range(count):
        sha256 = contents.sha256(number)
        for node_id in holders[number % NODES]:
            yield sha256, node_id, None
