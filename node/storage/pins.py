"""Blobs that stay although the log does not want or know them. Shared by three passes.

A pinned blob may be about to be used: it arrived within PIN_S, this node affirmed within PIN_S that it is
here (`BlobStore.affirm`), or an upload on this disk became this blob. The time is kept in the file system, so
all worker processes share it.

A pin only saves work. If one is lost, for example by a power cut, the log rejects the change that relies on
the blob, because it records since when the replica is gone.

Tested by tests/unit/node/storage/test_blobs.py.
"""

import os
from contextlib import suppress
from typing import Final

from node.diskio.fs import opened_directory, read_whole
from node.storage.blobs import BlobStore
from node.storage.leftovers import AREA
from node.storage.segments import FINISHED_BYTES, BlobMissing, decode_finished

FINISHED: Final = "finished"  # in the directory of an upload
PIN_S: Final = 600.0  # from the answer that a copy is here to the change that says so


def is_within(blobs: BlobStore, sha256: str, period_s: float, *, at_s: float) -> bool:
    """Return whether the blob arrived or was affirmed less than `period_s` from `at_s` (since the epoch).

    The distance counts in both directions, so a clock that was set back keeps no blob for ever. Blocks;
    raises FilestoreError.
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
