"""Digests of the state, a slice at a time: members that applied the same log have the same digests.

A slice is the next rows of one table in the order of its primary key. The start of the next slice is part of
the state, so members that differ there differ in what they hash. Bytes are hashed as stored in the database,
so damage is found even if it is no valid text.
"""

import hmac
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ca.errors import InvalidRequest
from coordinator.machine.execution import slice_changes
from coordinator.machine.execution.change import Change, rules_in_force
from metadata.model import rules
from metadata.model.records import HashReport, StateHash
from metadata.protocol.commands import HashState, HashWhole, ReportHash

TABLES = (
    "applied",
    "cluster",
    "coordinators",
    "keys",
    "digest_position",
    "users",
    "join_tokens",
    "joins",
    "nodes",
    "recounts",
    "certificates",
    "buckets",
    "bucket_permissions",
    "files",
    "project_files",
    "manifests",
    "vms",
    "backups",
    "file_permissions",
    "public_tokens",
    "job_runs",
    "uploads",
    "blobs",
    "blob_totals",
    "blob_replicas",
    "burials",
    "sessions",
    "replies",
    "damaged_copies",
    "damaged_blobs",
    "replica_totals",
)
# These columns change once for each batch, and each member cuts its own batches.
COLUMNS_LEFT_OUT = {"applied": ("log_index", "term")}

# With the rules in force. The digest of other data never equals one of these.
_DOMAIN = "filestore state {}"
_WHOLE_DOMAIN = "filestore whole state {}"
WHOLE_ROWS = 2000  # at once, while the whole state is hashed
_Key = list[int | bytes]
_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(_Key).decode


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a table: `key` in the order of the primary key; `selected` begins with the same."""

    key: tuple[str, ...]
    bound: tuple[str, ...]
    selected: tuple[str, ...]


def hash_slice(change: Change, command: HashState) -> StateHash:
    """Return the digest of the next rows.

    The next table follows at the end of one, and the first after the last.
    """
    change.sessions.flush()
    db = change.db
    slice_changes.bound(db)
    stored = db.execute("SELECT CAST(table_name AS BLOB), after FROM digest_position").fetchone()
    tables = tables_of(rules_in_force(db))
    table, after = _start(tables, *stored) if stored else (tables[0], [])
    columns = _columns(db, table)
    if len(after) != len(columns.key):
        after = []
    rows = _rows(db, table, columns, after, command.rows_max)
    domain = _DOMAIN.format(rules_in_force(db)).encode()
    digest = hmac.new(domain, _encode(stored) + _encode(rows), "sha256").hexdigest()
    end = rows[-1][: len(columns.key)] if len(rows) == command.rows_max else None
    touches = slice_changes.forget(db, table, columns.key, columns.bound, after, end)
    if len(rows) < command.rows_max:
        following = (tables[(tables.index(table) + 1) % len(tables)], b"")
    else:
        following = (table, _encode(rows[-1][: len(columns.key)]))
    db.execute(
        "INSERT INTO digest_position (one, table_name, after) VALUES (1, ?, ?)"
        " ON CONFLICT (one) DO UPDATE SET table_name = excluded.table_name, after = excluded.after",
        following,
    )
    return StateHash(
        log_index=change.log_index,
        table=table,
        digest=digest,
        rows=len(rows),
        position=_encode(stored).hex(),
        tracked=touches.are_known,
        touched=touches.any,
    )


def hash_whole(change: Change, command: HashWhole) -> int:
    """Return the place in the log where each member hashes all of its state in the background.

    `whole_digest` does that.
    """
    del command
    return change.log_index


def whole_digest(db: sqlite3.Connection, *, pause: Callable[[], None]) -> str:
    """Return the digest of all rows of all tables, in the one transaction that the caller has opened.

    Takes a second or two for each 10^6 rows; `pause` is called after every few thousand. Raises sqlite3.Error
    for unreadable rows.
    """
    version = rules_in_force(db)
    whole = hmac.new(_WHOLE_DOMAIN.format(version).encode(), digestmod="sha256")
    for table in tables_of(version):
        columns = _columns(db, table)
        whole.update(_encode(table))
        after: _Key = []
        while True:
            rows = _rows(db, table, columns, after, WHOLE_ROWS)
            whole.update(_encode(rows))
            pause()
            if len(rows) < WHOLE_ROWS:
                break
            after = list(rows[-1][: len(columns.key)])  # type: ignore[arg-type]  # a key is never NULL
    return whole.hexdigest()


def report(change: Change, command: ReportHash) -> HashReport:
    """Pass a coordinator's report on to every member at the same place in the log, without a change."""
    if command.log_index >= change.log_index:
        raise InvalidRequest("log_index: nothing was hashed there yet.")
    return HashReport(
        coordinator_id=command.coordinator_id,
        log_index=command.log_index,
        digest=command.digest,
        origin=command.origin,
        agreed_at=command.agreed_at,
        touched=command.touched,
        odd=command.odd,
        rebuilt_at_ms=command.rebuilt_at_ms,
    )


def tables_of(version: int) -> tuple[str, ...]:
    """Return the tables that are hashed with these rules, in this order."""
    return (*TABLES, *(name for name, since in rules.TABLES_SINCE.items() if since <= version))


def _start(tables: Sequence[str], name: bytes, after: bytes) -> tuple[str, _Key]:
    """Return the place to begin at. A damaged position may be anywhere: it is hashed itself, so it shows."""
    table = name.decode(errors="replace")
    if table not in tables:
        return tables[0], []
    try:
        return table, _decode_key(after) if after else []
    except msgspec.MsgspecError:
        return table, []


def _columns(db: sqlite3.Connection, table: str) -> _Columns:
    described = db.execute(
        "SELECT name, type, pk FROM pragma_table_info(?) ORDER BY name", (table,)
    ).fetchall()
    left_out = COLUMNS_LEFT_OUT.get(table, ())
    key = [(name, kind) for _, name, kind in sorted((pk, name, kind) for name, kind, pk in described if pk)]
    data = [(name, kind) for name, kind, _ in described if name not in left_out]
    return _Columns(
        key=tuple(name for name, _ in key),
        bound=tuple(f"CAST(? AS {kind})" for _, kind in key),
        selected=tuple(
            name if kind == "INTEGER" else f"CAST({name} AS BLOB)" for name, kind in (*key, *data)
        ),
    )


def _rows(
    db: sqlite3.Connection, table: str, columns: _Columns, after: _Key, rows_max: int
) -> list[tuple[int | bytes | None, ...]]:
    key = ", ".join(columns.key)
    beyond = f"WHERE ({key}) > ({', '.join(columns.bound)})" if after else ""
    return db.execute(
        f"SELECT {', '.join(columns.selected)} FROM {table} {beyond} ORDER BY {key} LIMIT ?",
        (*after, rows_max),
    ).fetchall()
