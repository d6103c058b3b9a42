"""Cold blobs in the data directory of a node, by its files alone: the node may be running."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from node.cold.chunks import ChunkStore
from node.cold.manifest import ManifestInvalid, decode_manifest
from node.packs.pack_file import pack_name
from node.packs.record import HEAD_BYTES
from node.packs.rows import PackedBlob, blob_of
from tests.packed_blobs import BUSY_S


def manifest_of(data: Path, name: str) -> Path:
    """Where the manifest of a blob lies."""
    return data / "cold" / name[:2] / name


def cold_names(data: Path) -> list[str]:
    """The names of all blobs with a manifest, ascending."""
    return sorted(path.name for path in (data / "cold").glob("??/*"))


def cold_content(data: Path, name: str) -> bytes | None:
    """The content of a cold blob; None if there is none, or it is damaged."""
    try:
        manifest = decode_manifest(manifest_of(data, name).read_bytes(), name)
    except (OSError, ManifestInvalid):
        return None
    found, store = list[bytes](), ChunkStore(data)
    for chunk_id in manifest.ids():
        content = None
        for row, pack, start in chunk_records(data, chunk_id):
            with suppress(OSError), pack.open("rb") as file:
                content = content or store.unpack(row, os.pread(file.fileno(), row.length, start))
        if content is None:
            return None
        found.append(content)
    return b"".join(found)


def chunk_records(data: Path, chunk_id: bytes) -> list[tuple[PackedBlob, Path, int]]:
    """The rows of a chunk, each with its pack and where its record begins there, behind the head."""
    address = f"file:{data / 'chunks' / 'index.sqlite'}?mode=ro"
    asked = "SELECT sha256, pack, offset, length, digest, affirmed_at_ns FROM blobs WHERE sha256 = ?"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as db:
        rows = [blob_of(row) for row in db.execute(asked, (chunk_id,))]
    return [(row, data / "chunks" / pack_name(row.place.pack), row.place.offset + HEAD_BYTES) for row in rows]


def cold_sizes(data: Path) -> dict[str, int]:
    """The size of the content of each cold blob with a sound manifest."""
    sizes = {}
    for name in cold_names(data):
        with suppress(OSError, ManifestInvalid):
            sizes[name] = decode_manifest(manifest_of(data, name).read_bytes(), name).size_bytes
    return sizes
