"""Rehearse a restore in a scratch directory. Shared by a job and a command.

A snapshot becomes a cluster of one coordinator, is compared, and deleted again. Blocking, no network.
"""

import secrets
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ca.errors import InvalidRequest
from coordinator.admin import restore
from coordinator.storage.config import CoordinatorFiles
from metadata.model.records import VOTER, CoordinatorRecord

_COUNTS: Final = (
    "SELECT (SELECT COALESCE(SUM(file_count), 0) FROM buckets),"
    " (SELECT COUNT(*) FROM files WHERE kind <> 'partial'),"
    " (SELECT COUNT(*) FROM nodes), (SELECT log_index FROM applied)"
)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The counts of a restored snapshot."""

    files: int
    nodes: int
    log_index: int


def rehearse(snapshot: Path, bundle: Path, scratch: Path) -> Rehearsal:
    """Restore a snapshot below an existing directory, and return what came back. All of it is deleted.

    Raises InvalidRequest for a snapshot that is damaged, incomplete or of another cluster than the bundle.
    """
    own = CoordinatorRecord(
        coordinator_id=f"rehearsal-{secrets.token_hex(4)}",
        address="127.0.0.1",
        peer_port=1,
        api_port=2,
        role=VOTER,
    )
    directory = Path(tempfile.mkdtemp(prefix="rehearsal-", dir=scratch))
    try:
        data = directory / "coordinator"
        restore.restore(data, snapshot=snapshot, bundle_path=bundle, own=own)
        address = f"{CoordinatorFiles(data).state.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as db:
            counted, files, nodes, log_index = db.execute(_COUNTS).fetchone()
            flaws = db.execute("PRAGMA foreign_key_check").fetchmany(1)
        if counted != files or flaws:
            raise InvalidRequest(f"snapshot: {snapshot} has {files} files, and {counted} by its buckets")
        return Rehearsal(files=files, nodes=nodes, log_index=log_index)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
