"""Files and directories that not even root may change, as long as that is wanted (chattr +i)."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """It can be read, not changed, moved or removed. The test is skipped where that cannot be had."""
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", path], check=False).returncode:
        pytest.skip("no file can be made immutable here")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", path], check=True)
