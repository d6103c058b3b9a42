"""Blobs that stay although the log wants them gone, or does not know them. Shared by three passes.

Pinned is what somebody may be about to count on: a blob that came, or of which somebody was told that it is
here, within PIN_S (`BlobStore.affirm`), and one that an upload on this disk has become. The time lies in the
file system, so all worker processes share it.

A pin only saves work. Should one be lost, as in a power cut, whoever counts on the blob is refused by the
log: it knows since when the replica is gone.
"""

import os
from contextlib import suppress
from typing import Final

from node.diskio.fs import opened_directory, read_whole
from node.storage.blobs import BlobStore
from node.storage.leftovers import AREA
from node.storage.segments import FINISHED_BYTES, BlobMissing, decode_finished

FINISHED: Final = "finished"  # in the directory of an upload
PIN_S: Final = 600.0  # between hearing that a copy is there and the change that says so


def is_within(blobs: BlobStore, sha256: str, period_s: float, *, at_s: float) -> bool:
    """Whether the blob came here or was affirmed less than `period_s` from `at_s` (since the epoch).

    Before or after: a clock that was set back keeps nothing for ever. Blocks; raises FilestoreError.
    """
    try:
        return abs(at_s - blobs.affirmed_at_s(sha256)) < period_s
    except BlobMissing:
        return False


def finished_blobs(blobs: BlobStore) -> frozenset[str]:
    """Return the blobs that uploads on this disk have become, except for unreadable ones. Blocks."""
    names, found = list[str](), set[str]()
    with blobs.poison.skipping(AREA, ""):
        names = os.listdir(blobs.uploads_directory)
        blobs.poison.keep(AREA, names)
    for name in names:
        with (
            blobs.poison.skipping(AREA, f"{name}/{FINISHED}"),
            suppress(FileNotFoundError, NotADirectoryError),
        ):
            with opened_directory(name, parent=blobs.uploads_directory) as directory:
                raw = read_whole(FINISHED, parent=directory, bytes_max=FINISHED_BYTES)
            finished = decode_finished(raw, name)
            if finished is not None:
                found.add(finished.sha256)
    return frozenset(found)
