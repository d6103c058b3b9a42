"""Every kind of file that a node keeps, and what a disk or a person may do to one of them."""

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from metadata.model.identifiers import is_sha256

Damage = Callable[[random.Random, Path, Path | None], None]


def flip(dice: random.Random, path: Path, _other: Path | None) -> None:
    """One bit is another."""
    _writable(path)
    with path.open("r+b") as file:
        file.seek(dice.randrange(path.stat().st_size))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1 << dice.randrange(8)]))


def cut(dice: random.Random, path: Path, _other: Path | None) -> None:
    """The end is gone."""
    _writable(path)
    os.truncate(path, dice.randrange(path.stat().st_size))


def zero(dice: random.Random, path: Path, _other: Path | None) -> None:
    """A run of bytes is zero."""
    _writable(path)
    size_bytes = path.stat().st_size
    start = dice.randrange(size_bytes)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(dice.randint(1, size_bytes - start)))


def swap(_dice: random.Random, path: Path, other: Path | None) -> None:
    """The content of another file of the same kind lies there."""
    assert other is not None
    mode, content = path.stat().st_mode, other.read_bytes()
    path.unlink()
    path.write_bytes(content)
    path.chmod(mode & 0o777)


def remove(_dice: random.Random, path: Path, _other: Path | None) -> None:
    """It is gone."""
    path.unlink()


def _writable(path: Path) -> None:
    path.chmod(path.stat().st_mode & 0o777 | 0o200)


DAMAGES: Mapping[str, Damage] = {"flip": flip, "cut": cut, "zero": zero, "swap": swap, "remove": remove}


def named(*names: str) -> Callable[[Path], list[Path]]:
    """Files of these names in the data directory of a node."""
    return lambda data: [data / name for name in names if (data / name).is_file()]


def below(area: str, name: str) -> Callable[[Path], list[Path]]:
    """Files of this name in the directories of an area."""
    return lambda data: sorted((data / area).glob(f"*/{name}"))


def blobs(data: Path) -> list[Path]:
    """Replicas in service."""
    return sorted(path for path in (data / "blobs").rglob("*") if is_sha256(path.name) and path.is_file())


def sidecars(data: Path) -> list[Path]:
    """Their checksums."""
    return sorted((data / "blobs").rglob("*.sums"))


def packs(data: Path) -> list[Path]:
    """Small replicas."""
    return sorted((data / "packs").glob("*.pack"))


# What is read while a node runs, and what only when it starts.
AT_WORK: Mapping[str, Callable[[Path], list[Path]]] = {
    "blob": blobs,
    "sidecar": sidecars,
    "upload data": below("uploads", "data"),
    "upload offset": below("uploads", "offset"),
    "upload epoch": below("uploads", "epoch"),
}
AT_START: Mapping[str, Callable[[Path], list[Path]]] = {
    **AT_WORK,
    "pack": packs,
    "partial content": below("partials", "content"),
    "partial state": below("partials", "state"),
    "scrub.json": named("scrub.json"),
    "coordinators.json": named("coordinators.json"),
    "audit.log": named("audit.log"),
    "housekeeping.log": named("housekeeping.log"),
    "node.json": named("node.json"),
    "ca.pem": named("ca.pem"),
    "credential.pem": named("credential.pem"),
}
# Without them a node does not know who it is: it says so, and somebody has to bring them back.
IDENTITY = frozenset({"node.json", "ca.pem", "credential.pem"})
