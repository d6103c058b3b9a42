"""Replicas that this node was found not to hold, until the log knows it.

    DIR/lost/SHA256   empty but for the reason: damaged (quarantined) or missing

Any worker process leaves a note when it meets one; the first of them reports (`node/custody/custody.py`). A
note survives the process. It is not synced: what a power cut takes is found by the next comparison with the
log. Where the disk takes no note the process keeps it in memory (`node/storage/out_of_service.py`), and
reports it to the first one (`node/peerapi/losses.py`). All calls block.
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
NOTES_MAX: Final = 10_000  # beyond, the comparison with the log finds the rest
_REASON_BYTES_MAX: Final = 16
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def note_lost(blobs: BlobStore, loss: Loss) -> None:
    """Leave a note; the first one about a replica stays. Where the disk refuses, it is kept in memory."""
    assert is_sha256(loss.sha256)
    try:
        if loss.sha256 not in blobs.poison.names(AREA):  # reported long ago, and cannot be taken away
            _write(blobs, loss)
            return
    except OSError as error:
        blobs.poison.note(AREA, "", error)
    blobs.out_of_service.note_loss(loss)


def list_lost(blobs: BlobStore, limit: int, *, besides: Collection[str] = ()) -> list[Loss]:
    """The notes, those in memory first, at most `limit`, without those that are named.

    What cannot be read may say anything: it counts as damaged. What was reported and cannot be taken away is
    none.
    """
    found = blobs.out_of_service.losses(limit, besides=besides)
    done = {*besides, *(loss.sha256 for loss in found), *blobs.poison.names(AREA)}
    with blobs.poison.skipping(AREA, ""), suppress(FileNotFoundError), _notes(blobs) as directory:
        names = sorted(name for name in os.listdir(directory) if is_sha256(name) and name not in done)
        for name in names[: limit - len(found)]:
            found.append(Loss(name, "missing" if _is_missing(name, directory) else "damaged"))
    return found


def forget_lost(blobs: BlobStore, sha256: str) -> None:
    """It is known to the log: take the note away. One that stays is not reported again."""
    blobs.out_of_service.forget_losses([sha256])
    _take_away(blobs, sha256)


def retry_notes(blobs: BlobStore) -> None:
    """Try those again that could not be taken away."""
    for sha256 in sorted(blobs.poison.names(AREA) - {""}):
        _take_away(blobs, sha256)


def _take_away(blobs: BlobStore, sha256: str) -> None:
    with blobs.poison.skipping(AREA, sha256), suppress(FileNotFoundError), _notes(blobs) as directory:
        # A read-only disk would refuse to remove what is not there.
        os.stat(sha256, dir_fd=directory, follow_symlinks=False)
        remove_tree(sha256, parent=directory)


def _write(blobs: BlobStore, loss: Loss) -> None:
    """Raises OSError; no part of a note is left then, if the disk lets it be removed."""
    with _notes(blobs, make=True) as directory:
        if len(os.listdir(directory)) >= NOTES_MAX:
            return
        try:
            descriptor = os.open(loss.sha256, _FLAGS, 0o600, dir_fd=directory)
        except FileExistsError:  # but one that was reported and cannot be taken away cannot be touched either
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
    """Their directory. Raises OSError; FileNotFoundError where there is none, unless it is to be made."""
    with closing_descriptor(blobs.areas.open(AREA, make=make)) as directory:
        yield directory
