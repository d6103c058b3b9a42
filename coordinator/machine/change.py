"""What a command is applied with, and the few reads that every resource shares. No I/O but SQLite."""

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One command's place in the log: its index orders lists, `at_ms` is the leader's time."""

    db: sqlite3.Connection
    log_index: int
    at_ms: int

    def touch_view(self) -> None:
        """Tell watching nodes that what GetView answers has changed."""
        self.db.execute("UPDATE applied SET view_version = ?", (self.log_index,))


@dataclass(frozen=True, slots=True)
class Question:
    """What a query is answered with: `at_ms` is the answering coordinator's time."""

    db: sqlite3.Connection
    at_ms: int
