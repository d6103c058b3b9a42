"""One deliberate bug, put into a copy of the product, and what its tests say of it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.rooms import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
COPIED = (*PACKAGES[:-1], "client", "tests", "docs", "pyproject.toml")
HUNT_S_MAX = 1200
PYTEST = ("pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-m", "long or not long")
FAILED = 1  # what pytest ends with when a test failed; anything else is no verdict
HUNT = ("tests.sim.hunt",)


class NoVerdict(Exception):
    """The tests of a mutant did not run."""


def hunt(mutant: Mutant, arguments: Sequence[str], root: Path = ROOT) -> str:
    """What caught the mutant, "" if it survived. Raises NoVerdict."""
    with tempfile.TemporaryDirectory(prefix="filestore-mutant-") as directory:
        copy = Path(directory)
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(root / name, copy / name)
        mutant.plant(copy)
        command = [*PYTEST, f"--basetemp={copy}/tmp", *mutant.tests] if mutant.tests else [*HUNT, *arguments]
        path = os.pathsep.join((str(copy), str(copy / "client")))
        environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", *command],
                cwd=copy,
                env=environment,
                capture_output=True,
                text=True,
                timeout=HUNT_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
    return _tested(mutant, done) if mutant.tests else _simulated(done)


def absent(tests: Sequence[str], root: Path = ROOT) -> str:
    """Which of these tests pytest does not find, in its words; "" for none."""
    command = [sys.executable, "-m", *PYTEST, "--collect-only", *tests]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=HUNT_S_MAX, check=False)
    return "" if done.returncode == 0 else done.stderr or done.stdout


def _simulated(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode not in (0, 1) or (done.returncode == 1 and done.stderr):
        return f"by the end of the process: {(done.stderr.splitlines() or ['killed'])[-1]}"
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else ""


def _tested(mutant: Mutant, done: subprocess.CompletedProcess[str]) -> str:
    said = done.stdout.strip().splitlines()
    if done.returncode not in (0, FAILED):
        why = done.stderr.strip().splitlines() or said or ["nothing said"]
        raise NoVerdict(f"{mutant.name}: pytest ended with {done.returncode}: {why[0]}")
    failed = [line for line in said if line.startswith(("FAILED tests/", "ERROR tests/"))]
    return f"by {(failed or said)[0]}" if done.returncode == FAILED else ""
