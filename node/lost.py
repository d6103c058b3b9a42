"""Replicas that this node was found not to hold, until the log knows it.

    DIR/lost/SHA256   empty but for the reason: damaged (put aside) or missing

Any worker process leaves a note when it meets one; the first of them reports (`node/custody.py`). A note
survives the process. It is not synced: what a power cut takes is found by the next comparison with the log.
All calls block.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

from node.blobs import BlobStore
from node.directories import read_whole, storage_error, unlink
from node.names import is_sha256

Reason = Literal["missing", "damaged"]

NOTES_MAX: Final = 10_000  # beyond, the comparison with the log finds the rest
_REASON_BYTES_MAX: Final = 16
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def note_lost(blobs: BlobStore, sha256: str, reason: Reason) -> None:
    """Leave a note; the first one about a replica stays. Raises FilestoreError when the disk refuses."""
    assert is_sha256(sha256)
    with _notes(blobs) as directory:
        if len(os.listdir(directory)) >= NOTES_MAX:
            return
        with suppress(FileExistsError):
            descriptor = os.open(sha256, _FLAGS, 0o600, dir_fd=directory)
            try:
                os.write(descriptor, reason.encode())
            finally:
                os.close(descriptor)


def list_lost(blobs: BlobStore, limit: int) -> list[tuple[str, Reason]]:
    """The notes, by name, at most `limit`. Raises FilestoreError."""
    found: list[tuple[str, Reason]] = []
    with _notes(blobs) as directory:
        names = sorted(name for name in os.listdir(directory) if is_sha256(name))
        for name in names[:limit]:
            raw = read_whole(name, parent=directory, bytes_max=_REASON_BYTES_MAX)
            found.append((name, "missing" if raw == b"missing" else "damaged"))
    return found


def forget_lost(blobs: BlobStore, sha256: str) -> None:
    """Take the note away, if there is one. Raises FilestoreError."""
    with _notes(blobs) as directory:
        unlink(sha256, parent=directory)


@contextmanager
def _notes(blobs: BlobStore) -> Iterator[int]:
    """Their directory. What the disk refuses meanwhile is raised as FilestoreError."""
    try:
        directory = blobs.open_area("lost")
        try:
            yield directory
        finally:
            os.close(directory)
    except OSError as error:
        raise storage_error(error) from error
