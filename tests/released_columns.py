"""Print the tables of the release before this one with their columns, one table on each line.

    .venv/bin/python -m tests.released_columns > tests/unit/coordinator/storage/released_columns.txt

renews the list that `test_released_columns.py` reads, in the commit that raises RULES
(metadata/model/rules.py): from there on, the release before this one is a newer one.
"""

import sqlite3
import subprocess
import sys
from contextlib import closing

from tests.cluster.previous_release import ROOT, previous_commit

SCHEMA = "coordinator/storage/schema.sql"
LIST = "tests/unit/coordinator/storage/released_columns.txt"


def columns_of(schema: str) -> dict[str, list[str]]:
    """The columns of each table that these statements make, both in alphabetical order."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(schema)
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            table: sorted(name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,)))
            for table in sorted(tables)
        }


def listed(schema: str) -> str:
    """The list of what these statements make."""
    return "".join(f"{table}: {' '.join(names)}\n" for table, names in columns_of(schema).items())


def released() -> str:
    """The list, as it is committed. Skips the test that asks where git or its history is missing."""
    shown = subprocess.run(
        ["git", "show", f"{previous_commit()}:{SCHEMA}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed(shown.stdout)


if __name__ == "__main__":
    sys.stdout.write(released())
