"""The rows of a deleted file as one document. A restore writes them again.

A file's rows are those of `files`, of its kind, and of what else has its sequence. Public links are left out:
they end with the deletion. A permission of a user comes back only if no command has ended that user's
permissions since: the document has the generations of these users, which such a command raises.

Tested by tests/unit/coordinator/machine/test_trash.py.
"""

import sqlite3
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from metadata.model.later_fields import LATER
from metadata.model.records import BACKUP, PROJECT_FILE, VM

_Row = dict[str, str | int | None]
_OF_KIND: Final[Mapping[str, str]] = {PROJECT_FILE: "project_files", VM: "vms", BACKUP: "backups"}
_GRANTS: Final = "file_permissions"
# What few files have; a deletion asks once which of them.
_OF_FEW: Final = (
    "manifests",
    "file_paths",
    "concatenations",
    "protected_files",
    *(each.table for each in LATER),
    _GRANTS,
)
_KEYS: Final[Mapping[str, str]] = {_GRANTS: "file_sequence"}  # "sequence" otherwise
_PRESENT: Final = "SELECT " + ", ".join(
    f"EXISTS (SELECT 1 FROM {table} WHERE {_KEYS.get(table, 'sequence')} = :sequence)" for table in _OF_FEW
)
KEPT_TABLES: Final = frozenset({"files", *_OF_KIND.values(), *_OF_FEW})
ENDED_TABLES: Final = frozenset({"public_tokens", "uploads"})  # with the deletion, or the upload
_USER: Final = "user:"


class _Document(Struct, frozen=True):
    """Rows by table, in the order in which they are written; generations by user."""

    rows: dict[str, list[_Row]]
    generations: dict[str, int]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Document).decode


def read(db: sqlite3.Connection, sequence: int, kind: str) -> str:
    """Return the document of the file with this sequence."""
    present = db.execute(_PRESENT, {"sequence": sequence}).fetchone()
    tables = (
        "files",
        _OF_KIND[kind],
        *(table for table, is_there in zip(_OF_FEW, present, strict=True) if is_there),
    )
    rows = {table: _rows(db, table, sequence) for table in tables}
    users = sorted({user for row in rows.get(_GRANTS, ()) if (user := _user_of(row))})
    generations = {user: _generation(db, user) for user in users}
    return _encode(_Document(rows, generations)).decode()


def write(db: sqlite3.Connection, document: str, *, bucket_id: str, owner_id: str, at_ms: int) -> None:
    """Write the rows again, in this bucket and for this owner: the record changes if either is new."""
    kept = _decode(document.encode())
    moved: _Row = {"bucket_id": bucket_id, "owner_id": owner_id}
    for table, rows in kept.rows.items():
        for row in rows:
            user = _user_of(row) if table == _GRANTS else ""
            if user and _generation(db, user) != kept.generations[user]:
                continue
            values = row | {name: value for name, value in moved.items() if name in row}
            if table == "files" and values != row:
                values["updated_at_ms"] = max(at_ms, int(row["updated_at_ms"] or 0) + 1)
            marks = ", ".join("?" * len(values))
            db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", (*values.values(),))


def _rows(db: sqlite3.Connection, table: str, sequence: int) -> list[_Row]:
    assert table in KEPT_TABLES
    key = _KEYS.get(table, "sequence")
    cursor = db.execute(f"SELECT * FROM {table} WHERE {key} = ? ORDER BY sequence", (sequence,))
    names = [column[0] for column in cursor.description]
    # By name: members that made the table with different releases may have its columns in another order.
    return [dict(sorted(zip(names, row, strict=True))) for row in cursor]


def _user_of(grant: _Row) -> str:
    """Return the user that a permission was granted to, "" for a group or role."""
    principal = str(grant["principal"])
    return principal.removeprefix(_USER) if principal.startswith(_USER) else ""


def _generation(db: sqlite3.Connection, user_id: str) -> int:
    """Return the generation of a user, which rises when its permissions end; 0 if there is no such user."""
    row = db.execute("SELECT generation FROM users WHERE user_id = ? AND deleted = 0", (user_id,)).fetchone()
    return 0 if row is None else int(row[0])
