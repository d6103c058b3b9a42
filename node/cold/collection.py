"""Deletes chunks that no manifest and no draft names. Apart from both: it must not delete one too many.

See docs/cold.md, "Collection". All calls block.

Only the first process of a node does this. The order of the steps is what makes it safe: chunks are listed
before the drafts, drafts before the manifests, and a chunk that was affirmed since it was listed stays.

Tested by tests/unit/node/cold/test_cold_storm.py.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from node.cold.chunks import ChunkStore
from node.cold.manifest import ID_BYTES, ManifestInvalid, decode_manifest, ids_in
from node.cold.manifests import ManifestFiles, read_descriptor
from node.diskio.fs import READ_FLAGS, closing_descriptor

SLICE_CHUNKS: Final = 100_000  # whose rows and references are in memory at once: about 60 MB
_ID_BITS: Final = 8 * ID_BYTES


@dataclass(slots=True)
class CollectedChunks:
    """The result of a collection.

    `missing`: chunks that a manifest names and the index lacks. `damaged`: blobs whose manifest is damaged.
    """

    removed: int = 0
    removed_bytes: int = 0
    missing: list[bytes] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


class DraftsChanged(Exception):
    """A draft was placed or given up while it was to be read: collect again later."""


def collect(chunks: ChunkStore, files: ManifestFiles) -> CollectedChunks:
    """Delete what nothing names. Raises DraftsChanged; OSError, also for a manifest that cannot be read."""
    result = CollectedChunks()
    slices = 1 + chunks.totals()[0] // SLICE_CHUNKS
    bounds = [((number << _ID_BITS) // slices).to_bytes(ID_BYTES + 1, "big")[1:] for number in range(slices)]
    for first, stop in zip(bounds, [*bounds[1:], b"\xff" * (ID_BYTES + 1)], strict=True):
        _collect_slice(chunks, files, (first, stop), result)
    result.damaged = sorted(set(result.damaged))
    return result


def _collect_slice(
    chunks: ChunkStore, files: ManifestFiles, bounds: tuple[bytes, bytes], result: CollectedChunks
) -> None:
    first, stop = bounds
    rows = list(chunks.rows(first, stop))
    drafted, named = set[bytes](), set[bytes]()
    for raw in _drafts(files):
        drafted.update(each for each in ids_in(raw) if first <= each < stop)
    for sha256, raw in _manifests(files):
        try:
            named.update(each for each in decode_manifest(raw, sha256).ids() if first <= each < stop)
        except ManifestInvalid:
            result.damaged.append(sha256)
            drafted.update(each for each in ids_in(raw) if first <= each < stop)
    dead = [row for row in rows if row.sha256 not in named and row.sha256 not in drafted]
    for at in range(0, len(dead), 1000):
        taken = chunks.remove(dead[at : at + 1000])
        result.removed += len(taken)
        result.removed_bytes += sum(row.length for row in taken)
    named.difference_update(row.sha256 for row in rows)
    result.missing += sorted(named - chunks.has(named))


def _drafts(files: ManifestFiles) -> Iterator[bytes]:
    """Yield the drafts of running processes as they are now."""
    for name in files.draft_names():
        try:
            descriptor = os.open(name, READ_FLAGS, dir_fd=files.drafts)
        except FileNotFoundError:
            raise DraftsChanged(name) from None
        with closing_descriptor(descriptor):
            yield read_descriptor(descriptor)


def _manifests(files: ManifestFiles) -> Iterator[tuple[str, bytes]]:
    """Yield each manifest. One that was removed since it was listed is passed over, as its blob is gone."""
    for sha256 in files.all_names():
        with suppress(FileNotFoundError), closing_descriptor(files.open(sha256)) as descriptor:
            yield sha256, read_descriptor(descriptor)
