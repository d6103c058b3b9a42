"""A program in an environment that has the client's wheel, and nothing else of this repository."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.rows import Skipped
from bench.wheel import clean_environment, installed


def environment_with(directory: Path, *requirements: str) -> Path:
    """The interpreter of a new environment; skips the test where pip gets no packages."""
    try:
        return installed(directory, *requirements)
    except Skipped as reason:
        pytest.skip(str(reason))


def run(python: Path, program: str, arguments: Sequence[str], environment: dict[str, str]) -> str:
    """What a program prints that is run by this interpreter, in an empty directory, to its end."""
    done = subprocess.run(
        [python, "-W", "error", "-c", program, *arguments],
        cwd=python.parent,
        env=clean_environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
