"""Manifests: what the archives of finished project files say of themselves."""

import msgspec

from ca.errors import NotAvailable
from coordinator.machine import files
from coordinator.machine.execution.access import Level
from coordinator.machine.execution.change import Change, Question
from metadata.model.records import PROJECT_FILE, Manifest
from metadata.protocol.queries import GetManifest

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Manifest).decode


def get(question: Question, query: GetManifest) -> Manifest:
    """The manifest of a project file whose upload has ended, after its retention too. Needs read.

    A file in which nobody read an archive has the archive `other`.
    """
    row = files.require(question, query.caller, query.file_uuid, Level.READ, PROJECT_FILE)
    if row.status in ("pending", "uploading"):
        raise NotAvailable(f"This file is {row.status}: its content is not complete.")
    stored = question.db.execute(
        "SELECT document FROM manifests WHERE sequence = ?", (row.sequence,)
    ).fetchone()
    return Manifest(archive="other") if stored is None else _decode(stored[0])


def store(change: Change, sequence: int, manifest: Manifest) -> None:
    """Store what was found in the content of the file with this sequence, once."""
    change.db.execute(
        "INSERT INTO manifests (sequence, document) VALUES (?, ?)", (sequence, _encode(manifest).decode())
    )
