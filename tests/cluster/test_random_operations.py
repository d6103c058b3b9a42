"""A short run of `make healing`: random operations on real nodes, then quiet, then the verdict.

In namespaces of its own where the machine allows it; what it does not allow is skipped with the reason.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.healing.__main__ import ACTS, CLIENTS, summed
from tests.healing.ledger import SIZE_BYTES_MAX, SIZE_BYTES_MIN, Content

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 500.0  # about 90 s on an idle machine; tests share theirs
OPERATIONS = 60
SEED = 11

pytestmark = [pytest.mark.long, pytest.mark.timeout(RUN_TIMEOUT_S + 60)]


def test_cluster_is_whole_after_random_operations(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.healing", "--seed", str(SEED), "--operations", str(OPERATIONS)]
    done = subprocess.run(
        [*command, "--report", str(report), "--data", str(tmp_path / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert report.exists(), said
    found = json.loads(report.read_bytes())
    assert found["faults"] == [], said
    assert done.returncode == 0, said
    assert sum(found["operations"].values()) == OPERATIONS
    assert set(found["operations"]) <= {*CLIENTS, *ACTS}
    assert found["files"] > 0


def test_content_depends_on_seed_and_number_alone() -> None:
    first, again, other = Content(1, 2), Content(1, 2), Content(2, 1)
    assert (first.sha256, first.size_bytes) == (again.sha256, again.size_bytes)
    assert first.sha256 != other.sha256
    assert len(first.bytes()) == first.size_bytes
    assert SIZE_BYTES_MIN <= first.size_bytes <= SIZE_BYTES_MAX


def test_outcomes_are_summed_without_the_names_of_files() -> None:
    outcomes = {"upload: stored 01a2-b3c 77aa0011": 1, "upload: stored 99c4-d5e 12345678": 2, "read: 503": 3}
    assert summed(outcomes) == {"upload: stored": 3, "read: 503": 3}
