"""The default suite has its files on a file system in memory, where the machine gives one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import memory_disk

SHOW = "import os; path = os.environ['TMPDIR']; print(path, os.stat(path).st_dev, os.statvfs(path).f_bsize)"


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.memory_disk", sys.executable, "-c", SHOW]
    kept = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True)


def test_place_that_is_named_is_used(tmp_path: Path) -> None:
    said, shown = run(TMPDIR=str(tmp_path)).stdout.splitlines()
    assert said == "The files of tests are on a disk: TMPDIR is set."
    assert shown.startswith(f"{tmp_path} {tmp_path.stat().st_dev} ")


def test_command_has_a_file_system_of_its_own_that_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    if reason := memory_disk.why_not():
        pytest.skip(reason)
    path, device, _ = run().stdout.split()
    assert int(device) not in {Path(path).stat().st_dev, memory_disk.MEMORY.stat().st_dev}
