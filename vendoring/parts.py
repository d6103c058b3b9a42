"""The committed files of each library, and their expected digests.

`parts.json` has the packages of the npm registry with their version and their sha512 from npm. For every used
file it has the path in the package, the name here and the sha256.
"""

import hashlib
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).resolve().parent.parent
PARTS: Final = ROOT / "vendoring" / "parts.json"
PLACE: Final = ROOT / "api" / "console" / "static" / "vendor"


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a package.

    `source` is its place in the package, `name` its name here, `sha256` that of the committed file.
    `replaced`: texts that become others, as a browser resolves no bare module name, and finds no map of the
    sources.
    """

    source: str
    name: str
    sha256: str
    replaced: dict[str, str] = {}


class Package(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A package of the npm registry, with its digest as npm writes it: `sha512-BASE64`."""

    name: str
    version: str
    integrity: str
    files: list[Part]


def read_packages() -> list[Package]:
    """The packages, in the order of `parts.json`."""
    return msgspec.json.decode(PARTS.read_bytes(), type=list[Package])


def committed_form(part: Part, published: bytes) -> bytes:
    """Return the committed form of a published file. Raises ValueError if a text to replace is missing."""
    text = published.decode("utf-8")
    for old, new in part.replaced.items():
        if text.count(old) != 1:
            raise ValueError(f"{part.source}: {old!r} is there {text.count(old)} times, not once")
        text = text.replace(old, new)
    return text.encode("utf-8")


def differences(place: Path = PLACE) -> list[str]:
    """Return how the files in `place` differ from `parts.json`: a sentence each, none without differences."""
    expected = {part.name: part.sha256 for package in read_packages() for part in package.files}
    found = {path.name for path in place.iterdir()}
    return [
        *(f"{name} is missing." for name in sorted(expected.keys() - found)),
        *(f"{name} is of no package." for name in sorted(found - expected.keys())),
        *(
            f"{name} has another content than vendoring/parts.json says."
            for name in sorted(expected.keys() & found)
            if hashlib.sha256((place / name).read_bytes()).hexdigest() != expected[name]
        ),
    ]
