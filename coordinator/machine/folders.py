"""Shared by files and their lists: a file may be in a folder of its bucket.

A folder exists while a file is in it or below it.

The table `file_paths` has a row for each file in a folder; a file at the top of its bucket has none. A path
has SEPARATOR there in place of "/". No name contains it and it sorts before every other character, so that a
folder is directly before all that is below it, and before folders whose names begin with its name.
"""

from coordinator.machine.execution.change import Change
from coordinator.machine.execution.pages import Condition

SEPARATOR = "\x01"
AFTER_SEPARATOR = "\x02"

# SQL for the path of one of `files f`, NULL at the top.
PATH_COLUMN = "(SELECT path FROM file_paths WHERE file_paths.sequence = f.sequence)"


def key_of(path: str) -> str:
    """Return a path as the table has it."""
    return path.replace("/", SEPARATOR)


def path_of(key: str | None) -> str:
    """Return a path of the table as everybody else has it, "" for the top."""
    return (key or "").replace(SEPARATOR, "/")


def place(change: Change, sequence: int, path: str) -> None:
    """Put a file into a folder, or with "" at the top of its bucket."""
    if not path:
        change.db.execute("DELETE FROM file_paths WHERE sequence = ?", (sequence,))
        return
    change.db.execute(
        "INSERT INTO file_paths (sequence, bucket_id, owner_id, path)"
        " SELECT sequence, bucket_id, owner_id, ? FROM files WHERE sequence = ?"
        " ON CONFLICT (sequence) DO UPDATE SET path = excluded.path",
        (key_of(path), sequence),
    )


def range_in(path: str) -> tuple[str, str]:
    """Return where the paths of a folder's own files begin and end in the table."""
    return key_of(path), key_of(path) + SEPARATOR


def range_below(path: str) -> tuple[str, str]:
    """Return where the paths of the files in a folder and below it begin and end in the table."""
    return key_of(path), key_of(path) + AFTER_SEPARATOR


def directly_in(path: str) -> Condition:
    """Return the condition that one of `files f` is in a folder, with "" at the top of its bucket."""
    if not path:
        return Condition("NOT EXISTS (SELECT 1 FROM file_paths WHERE file_paths.sequence = f.sequence)")
    return Condition(f"{PATH_COLUMN} = ?", (key_of(path),))


def below(path: str) -> Condition:
    """Return the condition that one of `files f` is in a folder or somewhere below it."""
    key = key_of(path)
    start = key + SEPARATOR
    return Condition(
        f"EXISTS (SELECT 1 FROM file_paths p WHERE p.sequence = f.sequence"
        f" AND (p.path = ? OR substr(p.path, 1, {len(start)}) = ?))",
        (key, start),
    )
