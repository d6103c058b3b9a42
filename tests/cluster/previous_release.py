"""The release before this one, built from git: the last commit whose program knows one rule less.

It lies in `.previous-release/COMMIT`, with its dependencies in an environment of its own, as its own
`make install` makes it.
"""

import fcntl
import io
import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from metadata.model.rules import RULES

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".previous-release"
# Where the rules lie, and where they lay before.
RULES_FILES: Final = ("metadata/model/rules.py", "coordinator/machine/execution/rules.py")
_NUMBER: Final = re.compile(r"^RULES: Final = (\d+)", re.MULTILINE)
_INSTALL_S: Final = 600.0


@dataclass(frozen=True)
class PreviousRelease:
    """`program` is its command, which finds nothing of this version."""

    commit: str
    program: Path


def previous_release() -> PreviousRelease:
    """Installed, if it is not yet. Skips the test where git or its history is missing."""
    commit = previous_commit()
    directory = CACHE / commit
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / ".complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            _unpack(commit, directory)
            _install(directory)
            (directory / ".complete").touch()
    return PreviousRelease(commit, directory / ".venv" / "bin" / "filestore")


def previous_commit() -> str:
    """The parent of the commit that raised the rules to those of now, which is the last of those before.

    It is the newest commit while the one that raises them is being made.
    """
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git, or no history of this directory, to build the previous release from")
    if _rules_at("HEAD") == RULES - 1:
        return _git("rev-parse", "HEAD").decode().strip()
    changed = _git("log", "--format=%H", r"-G^RULES: Final = ", "--", *RULES_FILES).decode().split()
    for commit in changed:
        if (_rules_at(commit), _rules_at(f"{commit}^")) == (RULES, RULES - 1):
            return _git("rev-parse", f"{commit}^").decode().strip()
    pytest.skip(f"the history ends before the commit that raised the rules to {RULES}")


def _rules_at(commit: str) -> int:
    """The newest rules that the program of a commit knows; 0 where that cannot be told."""
    for file in RULES_FILES:
        command = ["git", "show", f"{commit}:{file}"]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if found := _NUMBER.search(shown.stdout):
            return int(found[1])
    return 0


def _unpack(commit: str, directory: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as tree:
        tree.extractall(directory, filter="data")


def _install(directory: Path) -> None:
    done = subprocess.run(
        ["make", "install"],
        cwd=directory,
        env={
            name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "VIRTUAL_ENV"))
        },
        capture_output=True,
        text=True,
        timeout=_INSTALL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
