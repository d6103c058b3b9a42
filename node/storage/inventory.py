"""The blobs on one disk, in pages by name, and a quick check of one. Shared by compare and scrub.

All calls block. The check opens the blob and compares sizes. It reads none of the content: the scrub does
that.

Tested by tests/unit/node/storage/test_packed_damage.py.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from metadata.model.identifiers import is_sha256
from node.diskio.fs import unlink
from node.storage.blob_files import REPLICAS, SIDECAR, directory_names
from node.storage.blobs import BlobStore
from node.storage.segments import BlobDamaged, BlobMissing


@dataclass(frozen=True, slots=True)
class BlobCheck:
    """The result of a check.

    The blob is whole, missing (neither field set), or has the damage that was found.
    """

    sha256: str
    is_whole: bool
    damage: BlobDamaged | None = None


class Names:
    """The names of all blobs on the disk, ascending, page by page.

    A blob that arrives meanwhile may be missed.
    """

    def __init__(self, blobs: BlobStore, *, after: str = "") -> None:
        self._names: Iterator[str] = (name for name in blobs.iterate() if name > after)

    def page(self, limit: int) -> list[str]:
        """Return the next names; empty at the end. Raises OSError."""
        return list(itertools.islice(self._names, limit))


def check_blob(blobs: BlobStore, sha256: str, size_bytes: int) -> BlobCheck:
    """Check whether a blob of this size is there. Raises FilestoreError if the disk fails."""
    try:
        if blobs.size_bytes(sha256) == size_bytes:
            return BlobCheck(sha256, is_whole=True)
        with blobs.open(sha256) as blob:
            if blob.size_bytes == size_bytes:  # another blob was placed meanwhile
                return BlobCheck(sha256, is_whole=True)
            why = f"has {blob.size_bytes} bytes instead of the recorded {size_bytes}"
            return BlobCheck(sha256, is_whole=False, damage=blob.damage_error(why))
    except BlobMissing:
        return BlobCheck(sha256, is_whole=False)
    except BlobDamaged as damage:
        return BlobCheck(sha256, is_whole=False, damage=damage)


def remove_lone_sidecars(blobs: BlobStore, upper: str) -> int:
    """Remove the sidecars without a blob in one directory below `blobs` (two digits); return how many.

    A crash between two renames leaves such a sidecar, when a blob is placed or quarantined. It is useless and
    tiny, but no other pass removes it.
    """
    removed = 0
    for leaf in blobs.list_level(upper, directory_names):
        for sha256 in blobs.list_level(f"{upper}/{leaf}", _lone_sidecars):
            with blobs.poison.skipping(REPLICAS, sha256), suppress(FileNotFoundError):
                removed += _remove(blobs, sha256)
    return removed


def _remove(blobs: BlobStore, sha256: str) -> bool:
    with blobs.placing, blobs.leaf(sha256) as leaf:
        if sha256 in os.listdir(leaf):  # the blob was placed meanwhile
            return False
        return unlink(sha256 + SIDECAR, parent=leaf)


def _lone_sidecars(descriptor: int) -> list[str]:
    """Return the names of sidecars that have no blob."""
    names = set(os.listdir(descriptor))
    lone = {name.removesuffix(SIDECAR) for name in names if name.endswith(SIDECAR)} - names
    return sorted(filter(is_sha256, lone))
