"""Sums that no honest cluster reaches: what they would do to a column is refused or cut, never an error.

An entry that cannot be applied would end every coordinator, again at each start.
"""

import sqlite3
from contextlib import closing

import msgspec

from runtime.bounds import COUNT_MAX
from tests.unit.state import ADMIN, State, complete, create


def test_blob_that_the_sum_of_all_could_not_take_is_refused(state: State) -> None:
    held_bytes = 2**62 - 99
    with closing(sqlite3.connect(state.path)) as db, db:
        db.execute("UPDATE blob_totals SET bytes = ?", (held_bytes,))
    state.done(create(ADMIN, "f1", size_bytes=100))
    refusal = state.apply(msgspec.structs.replace(complete(ADMIN, "f1", "aa", ["n1", "n2"]), size_bytes=100))
    assert refusal == "payload_too_large"
    assert str(held_bytes) in refusal.details


def test_full_buckets_beyond_what_a_sum_holds_are_still_counted(state: State) -> None:
    with closing(sqlite3.connect(state.path)) as db, db:
        db.executemany(
            "INSERT INTO buckets VALUES (?, ?, 'owner', 0, ?, 1, 0, 0, 1, 0, 0)",
            [(f"b-{number}", f"b-{number}", COUNT_MAX) for number in range(1025)],
        )
    assert state.store.usage() == (1025, COUNT_MAX)
