"""Sidecars that a crash between two renames left without their blob, on the way in or to quarantine.

They prove nothing and are tiny, but nobody else looks for them. All calls block.
"""

import os
from contextlib import suppress

from node.base.identifiers import is_sha256
from node.diskio.fs import unlink
from node.storage.blob_files import REPLICAS, SIDECAR, directory_names
from node.storage.blobs import BlobStore


def remove_lone_sidecars(blobs: BlobStore, upper: str) -> int:
    """Those in one directory below `blobs` (two digits) are removed; how many."""
    removed = 0
    for leaf in blobs.listed(upper, directory_names):
        for sha256 in blobs.listed(f"{upper}/{leaf}", _lone_sidecars):
            with blobs.poison.skipping(REPLICAS, sha256), suppress(FileNotFoundError):
                removed += _remove(blobs, sha256)
    return removed


def _remove(blobs: BlobStore, sha256: str) -> bool:
    with blobs.placing, blobs.leaf(sha256) as leaf:
        if sha256 in os.listdir(leaf):  # it has come since
            return False
        return unlink(sha256 + SIDECAR, parent=leaf)


def _lone_sidecars(descriptor: int) -> list[str]:
    """The names of blobs that are not there."""
    names = set(os.listdir(descriptor))
    lone = {name.removesuffix(SIDECAR) for name in names if name.endswith(SIDECAR)} - names
    return sorted(filter(is_sha256, lone))
