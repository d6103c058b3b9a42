"""Fetch the libraries of the web console again: `make vendor`.

`npm pack` downloads the packages from the configured registry of npm, and runs none of their code. If the
sha512 of a package differs from the pinned one, the program ends before anything is written.
"""

import base64
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vendoring.parts import PLACE, Package, committed_form, differences, read_packages

TIMEOUT_S: Final = 120.0


def fetch(package: Package, directory: Path) -> bytes:
    """The package's tarball, whose digest is the pinned one. Raises ValueError, CalledProcessError."""
    wanted = f"{package.name}@{package.version}"
    subprocess.run(
        ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", str(directory), wanted],
        check=True,
        timeout=TIMEOUT_S,
        stdout=subprocess.DEVNULL,
        cwd=directory,
    )
    (tarball,) = directory.glob("*.tgz")
    content = tarball.read_bytes()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if integrity != package.integrity:
        raise ValueError(f"{wanted} has the digest {integrity}, not {package.integrity}.")
    return content


def files_of(package: Package) -> Iterator[tuple[str, bytes]]:
    """Yield name and committed form of each used file of a package. Raises as `fetch` does, KeyError."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        fetch(package, directory)
        (tarball,) = directory.glob("*.tgz")
        with tarfile.open(tarball) as archive:
            for part in package.files:
                member = archive.extractfile(f"package/{part.source}")
                if member is None:
                    raise KeyError(part.source)
                yield part.name, committed_form(part, member.read())


def fetch_into(place: Path) -> None:
    """Fetch every package, then write the files. Raises as `files_of` does."""
    contents = dict(found for package in read_packages() for found in files_of(package))
    place.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (place / name).write_bytes(content)


def main() -> int:
    """Fetch into the tree; 1 where what came is not what `parts.json` says."""
    fetch_into(PLACE)
    faults = differences()
    for fault in faults:
        print(fault, file=sys.stderr)  # noqa: T201
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
