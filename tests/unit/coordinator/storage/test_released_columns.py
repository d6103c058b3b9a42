"""No table that the release before this one knows gets a column: what is new has a table of its own.

Put back, that release hashes every column that it finds in a table that it knows. Its digests would differ
from those of members that were never upgraded, and it would end.
"""

from pathlib import Path
from typing import Final

from metadata.model.later_fields import LATER
from metadata.model.rules import RULES, TABLES_SINCE
from tests.cluster.previous_release import ROOT
from tests.released_columns import SCHEMA, columns_of, released

LIST: Final = (Path(__file__).parent / "released_columns.txt").read_text()
RELEASED: Final = {
    table: names.split() for table, _, names in (line.partition(": ") for line in LIST.splitlines())
}


def added(schema: str) -> set[str]:
    """The columns that are not of the release, in tables that are."""
    return {
        f"{table}.{column}"
        for table, columns in columns_of(schema).items()
        if table in RELEASED
        for column in columns
        if column not in RELEASED[table]
    }


def test_no_column_is_added_to_a_table_of_the_release_before() -> None:
    schema = (ROOT / SCHEMA).read_text()
    assert added(schema) == set(), 'give each its own table: CONTRIBUTING.md, "A field of a kind of file"'
    newer = schema.replace(
        "ram_mb                 INTEGER NOT NULL,", "ram_mb INTEGER NOT NULL, os_name TEXT,"
    )
    assert added(newer) == {"vms.os_name"}


def test_every_newer_table_is_in_digests_by_the_newest_rules() -> None:
    schema = (ROOT / SCHEMA).read_text() + "".join(each.schema for each in LATER if each.since == RULES)
    newer = set(columns_of(schema)) - RELEASED.keys()
    hashed = {table for table, since in TABLES_SINCE.items() if since == RULES}
    assert newer == hashed, (
        "metadata/model/rules.py: TABLES_SINCE names each new table with RULES. If RULES has just risen,"
        " `python -m tests.released_columns` prints the tables that are not new any more"
    )


def test_list_is_that_of_the_release_before() -> None:
    """Where git has its history."""
    assert released() == LIST, "renew it as `tests/released_columns.py` says"
