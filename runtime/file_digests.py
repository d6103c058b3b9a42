"""The sha256 of a file, in NAME.sha256. Shared by snapshots, their copies elsewhere, and restores.

`sha256sum -c` reads that file too. Blocking, real files.

For files that are kept for years and bear no checksums themselves: SQLite's pages have none.

Tested by tests/unit/coordinator/admin/test_offsite.py.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from ca.secretfiles import write_secret
from runtime.stopping import NEVER, Stop

READ_BYTES: Final = 1 << 20


def sha256_of(path: Path, stop: Stop = NEVER) -> str:
    """The digest of a whole file, in lower-case hexadecimal. Raises WorkStopped."""
    digest, buffer = hashlib.sha256(), bytearray(READ_BYTES)
    with open(path, "rb", buffering=0) as file, memoryview(buffer) as view:
        while count := file.readinto(buffer):
            digest.update(view[:count])
            stop.check()
    return digest.hexdigest()


def digest_beside(path: Path) -> Path:
    """Return the path of a file's digest."""
    return path.with_name(path.name + ".sha256")


def write_digest(path: Path, *, named_as: Path | None = None, stop: Stop = NEVER) -> None:
    """Write the digest of a file durably, named after the file or after its future name."""
    name = named_as or path
    write_secret(digest_beside(name), os.fsencode(f"{sha256_of(path, stop)}  {name.name}\n"))


def matches_digest(path: Path, *, named_as: Path | None = None) -> bool:
    """Return whether a file matches its digest; True if there is no digest.

    The digest is next to the file, or next to the file that it is a copy of.
    """
    try:
        line = digest_beside(named_as or path).read_bytes()
    except FileNotFoundError:
        return True
    return line.split(maxsplit=1)[:1] == [sha256_of(path).encode("ascii")]
