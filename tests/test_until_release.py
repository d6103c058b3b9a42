"""What is there for an older release names the release that it goes with, and goes with it.

A roll-back of one release is promised, so what 0.2.0 needs for 0.1.0 is of no use in 0.3.0. Such a place is
marked with the words `until`, the release and a colon. This test fails in the commit that makes the version
that release, and names all that has to go.
"""

import re
import tomllib
from typing import Final

from tests.cluster.previous_release import ROOT

_MARK: Final = re.compile(r"until (\d+\.\d+\.\d+): ")
_PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
_FOLDERS: Final = [*_PROJECT["tool"]["importlinter"]["root_packages"], "client", "tests"]


def places(version: str) -> list[str]:
    """Those that are of no use any more in this release."""
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in _FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".js", ".sql")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (mark := _MARK.search(line)) and numbers(mark[1]) <= numbers(version)
    ]


def numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def test_nothing_stays_longer_than_the_release_that_it_is_marked_with() -> None:
    assert places(_PROJECT["project"]["version"]) == [], (
        "delete what these places say; the release before does not need it"
    )


def test_marks_are_found() -> None:
    assert any(place.startswith("metadata/model/rules.py:") for place in places("0.3.0"))
    assert places("0.2.0") == []
