"""What operators install, made from this checkout as a developer makes it."""

import subprocess
from pathlib import Path

from tests.sources import ROOT

BUILD_TIMEOUT_S = 600.0


def made(*target: str) -> Path:
    """What `make TARGET` (a target, and variables) says that it has written."""
    done = subprocess.run(
        ["make", "--silent", *target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return ROOT / done.stdout.split()[-3]
