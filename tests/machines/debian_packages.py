"""Programs of Debian that a long suite needs: installed where that can be done, else the suite is skipped."""

import os
import shutil
import subprocess
from collections.abc import Mapping

import pytest

INSTALL_TIMEOUT_S = 600.0


def require(packages: Mapping[str, str]) -> None:
    """Have programs, each with the package that brings it. Skips the test, with the reason."""
    missing = sorted({package for program, package in packages.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"not installed: {', '.join(missing)}")
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"cannot install {', '.join(missing)}: {done.stderr.strip()[-300:]}")
