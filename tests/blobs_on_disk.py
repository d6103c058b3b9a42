"""Blobs in the data directory of a node: files, packed or cold; and what a disk or a test does to one."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from metadata.model.identifiers import is_sha256
from node.storage.blob_files import SIDECAR
from tests.cold_blobs import chunk_records, cold_content, cold_names, cold_sizes, manifest_of
from tests.packed_blobs import age_packed_all, lose_packed, packed_content, packed_sizes


def file_of(data: Path, name: str) -> Path:
    """Where a blob lies if it is a file."""
    return data / "blobs" / name[:2] / name[2:4] / name


def content_on(data: Path, name: str) -> bytes | None:
    """What lies under the name of a blob, sound or not; None for nothing."""
    found = packed_content(data, name)
    with suppress(FileNotFoundError):
        return file_of(data, name).read_bytes() if found is None else found.read()
    return cold_content(data, name)


def is_on(data: Path, name: str) -> bool:
    """Whether a blob is there, with its checksums."""
    file = file_of(data, name)
    is_file = file.exists() and file.with_name(name + SIDECAR).exists()
    return is_file or packed_content(data, name) is not None or manifest_of(data, name).exists()


def is_sound_on(data: Path, name: str) -> bool:
    """Whether the bytes of a blob are what its name says."""
    found = packed_content(data, name)
    try:
        if found is not None:
            return hashlib.sha256(found.read()).hexdigest() == name
        with file_of(data, name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == name
    except OSError:
        content = cold_content(data, name)
        return content is not None and hashlib.sha256(content).hexdigest() == name


def sizes_on(data: Path) -> dict[str, int]:
    """The size of each blob, by its name."""
    files = [path for path in (data / "blobs").rglob("*") if is_sha256(path.name)]
    return cold_sizes(data) | {path.name: path.stat().st_size for path in files} | packed_sizes(data)


def change_byte_on(data: Path, name: str, offset: int) -> None:
    """One bit of a blob is another."""
    found = packed_content(data, name)
    if found is None:
        change_byte(file_of(data, name), offset)
    else:
        content = bytearray(found.read())
        content[offset] ^= 1
        found.write(content)


def change_byte(path: Path, offset: int) -> None:
    """One bit of a file is another."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def rot_chunk(data: Path, chunk_id: bytes) -> bool:
    """One bit of a chunk is another; False if it is not there."""
    for row, pack, start in chunk_records(data, chunk_id):
        with suppress(FileNotFoundError):
            change_byte(pack, start + row.length // 2)
            return True
    return False


def lose_on(data: Path, name: str) -> None:
    """A blob is not there any more, if it was."""
    file_of(data, name).unlink(missing_ok=True)
    manifest_of(data, name).unlink(missing_ok=True)
    if packed_content(data, name) is not None:
        lose_packed(data, name)


def age_all_on(data: Path, at_s: float, *, newer_than_s: float = 0.0) -> None:
    """As if all that lies there, and came after `newer_than_s`, had come at this time since the epoch."""
    manifests = [manifest_of(data, name) for name in cold_names(data)]
    for path in [*(data / "blobs").rglob("*"), *manifests]:
        with suppress(FileNotFoundError):
            if path.stat().st_mtime > newer_than_s:
                os.utime(path, (at_s, at_s))
    age_packed_all(data, at_s, newer_than_s=newer_than_s)
