"""The content of a file: its record together with the nodes that hold its bytes."""

import sqlite3

from ca.errors import Gone, NotAvailable
from coordinator.machine import blobs, files
from coordinator.machine.access import Level
from coordinator.machine.change import Question
from coordinator.queries import GetContent
from coordinator.records import ContentRecord


def get(question: Question, query: GetContent) -> ContentRecord:
    """The record and the nodes that hold the bytes. Needs read."""
    row = files.require(question, query.caller, query.file_uuid, Level.READ)
    if row.status == "tombstoned":
        raise Gone("The retention period of this file has passed.")
    if row.status != "available":
        raise NotAvailable(f"This file is {row.status}: its content is not complete.")
    return record(question.db, query.file_uuid)


def record(db: sqlite3.Connection, file_uuid: str) -> ContentRecord:
    """The record of an available file with its replicas, by node id."""
    file = files.record(db, file_uuid)
    return ContentRecord(file=file, replicas=blobs.replicas(db, file.blob_sha256))
