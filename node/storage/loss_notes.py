"""Replicas that this node has lost, until the log knows of it.

    DIR/lost/SHA256   empty but for the reason: damaged (quarantined) or missing

The worker process that notices a loss leaves a note; worker 0 reports it (`node/custody/custody.py`). A note
survives the process. It is not synced: the next comparison with the log finds what a power cut takes. If the
disk accepts no note, the process keeps it in memory (`node/storage/out_of_service.py`), and sends it to
worker 0 (`node/peerapi/losses.py`). All calls block.

Tested by tests/unit/node/storage/test_out_of_service.py.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from metadata.model.identifiers import is_sha256
from node.diskio.fs import closing_descriptor, read_whole, remove_tree, unlink
from node.storage.blobs import BlobStore
from node.storage.out_of_service import Loss
from node.storage.out_of_service import Reason as Reason

AREA: Final = "lost"
NOTES_MAX: Final = 10_000  # the comparison with the log finds further ones
_REASON_BYTES_MAX: Final = 16
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def note_lost(blobs: BlobStore, loss: Loss) -> None:
    """Leave a note about a lost replica; the first one stays. If the disk refuses it, memory keeps it."""
    assert is_sha256(loss.sha256)
    try:
        if loss.sha256 not in blobs.poison.names(AREA):  # reported long ago, but the note cannot be removed
            _write(blobs, loss)
            return
    except OSError as error:
        blobs.poison.note(AREA, "", error)
    blobs.out_of_service.note_loss(loss)


def list_lost(blobs: BlobStore, limit: int, *, besides: Collection[str] = ()) -> list[Loss]:
    """Return up to `limit` notes, those in memory first, without the named ones.

    An unreadable note counts as damaged. A note that was reported and cannot be removed is left out.
    """
    found = blobs.out_of_service.losses(limit, besides=besides)
    done = {*besides, *(loss.sha256 for loss in found), *blobs.poison.names(AREA)}
    with blobs.poison.skipping(AREA, ""), suppress(FileNotFoundError), _notes(blobs) as directory:
        names = sorted(name for name in os.listdir(directory) if is_sha256(name) and name not in done)
        for name in names[: limit - len(found)]:
            found.append(Loss(name, "missing" if _is_missing(name, directory) else "damaged"))
    return found


def forget_lost(blobs: BlobStore, sha256: str) -> None:
    """Remove the note, as the log knows of the loss. If that fails, the loss is not reported again."""
    blobs.out_of_service.forget_losses([sha256])
    _take_away(blobs, sha256)


def retry_notes(blobs: BlobStore) -> None:
    """Try again to remove notes that could not be removed."""
    for sha256 in sorted(blobs.poison.names(AREA) - {""}):
        _take_away(blobs, sha256)


def _take_away(blobs: BlobStore, sha256: str) -> None:
    with blobs.poison.skipping(AREA, sha256), suppress(FileNotFoundError), _notes(blobs) as directory:
        # A read-only disk would refuse to remove even a missing note.
        os.stat(sha256, dir_fd=directory, follow_symlinks=False)
        remove_tree(sha256, parent=directory)


def _write(blobs: BlobStore, loss: Loss) -> None:
    """Write a note. Raises OSError, and then removes an incomplete note if the disk allows it."""
    with _notes(blobs, make=True) as directory:
        if len(os.listdir(directory)) >= NOTES_MAX:
            return
        try:
            descriptor = os.open(loss.sha256, _FLAGS, 0o600, dir_fd=directory)
        except FileExistsError:  # a note that was reported and cannot be removed cannot be written either
            os.utime(loss.sha256, dir_fd=directory, follow_symlinks=False)
            return
        try:
            os.write(descriptor, loss.reason.encode())
        except OSError:
            with suppress(OSError):
                unlink(loss.sha256, parent=directory)
            raise
        finally:
            os.close(descriptor)


def _is_missing(name: str, directory: int) -> bool:
    try:
        return read_whole(name, parent=directory, bytes_max=_REASON_BYTES_MAX) == b"missing"
    except OSError:
        return False


@contextmanager
def _notes(blobs: BlobStore, *, make: bool = False) -> Iterator[int]:
    """Open the directory of notes.

    Raises OSError, and FileNotFoundError if it does not exist and `make` is False.
    """
    with closing_descriptor(blobs.areas.open(AREA, make=make)) as directory:
        yield directory
