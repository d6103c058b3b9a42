"""The state machine: it applies commands to the database and answers queries from it.

It is deterministic and has no I/O but SQLite. No clock, no dice, no network here: time is the leader's,
stamped into the envelope; ids come in the command. Every member applies the same entries in the same order
and must reach the same rows. A refusal (no such file, not permitted) is raised as a FilestoreError before
anything is written, and becomes a reply; any other exception is a broken invariant and ends the process.
Permission is decided here, where it is atomic with the change it allows.
"""

from coordinator.machine.dispatch import Batch, answer

__all__ = ["Batch", "answer"]
