"""What lies on one disk, in pages by name, and what a look at one blob tells. All calls block.

A look opens the blob and compares sizes; it reads none of the content: that is what scrubbing is for.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from node.storage.blobs import BlobStore
from node.storage.segments import BlobDamaged, BlobMissing


@dataclass(frozen=True, slots=True)
class Look:
    """A blob that should be here: whole, missing (neither), or with the damage that was found."""

    sha256: str
    is_whole: bool
    damage: BlobDamaged | None = None


class Names:
    """The names of all blobs on the disk, ascending, page by page. One that comes meanwhile may be missed."""

    def __init__(self, blobs: BlobStore, *, after: str = "") -> None:
        self._names: Iterator[str] = (name for name in blobs.iterate() if name > after)

    def page(self, limit: int) -> list[str]:
        """The next ones; empty at the end. Raises OSError."""
        return list(itertools.islice(self._names, limit))


def look(blobs: BlobStore, sha256: str, size_bytes: int) -> Look:
    """What is there of a blob of that size. Raises FilestoreError when the disk says nothing about it."""
    try:
        if blobs.size_bytes(sha256) == size_bytes:
            return Look(sha256, is_whole=True)
        with blobs.open(sha256) as blob:
            if blob.size_bytes == size_bytes:  # another has come meanwhile
                return Look(sha256, is_whole=True)
            why = f"has {blob.size_bytes} bytes, the log says {size_bytes}"
            return Look(sha256, is_whole=False, damage=blob.damaged(why))
    except BlobMissing:
        return Look(sha256, is_whole=False)
    except BlobDamaged as damage:
        return Look(sha256, is_whole=False, damage=damage)
