"""A short run of `make healing`: random operations on real nodes, then quiet, then the verdict.

In namespaces of its own where the machine allows it; what it does not allow is skipped with the reason.
"""

from pathlib import Path

import pytest

from tests.cluster.programs import run_program
from tests.file_ledger import SIZE_BYTES_MAX, SIZE_BYTES_MIN, Content
from tests.healing.__main__ import ACTS, CLIENTS, summed

RUN_TIMEOUT_S = 500.0  # about 90 s on an idle machine; tests share theirs
OPERATIONS = 60
SEED = 11

pytestmark = [pytest.mark.long, pytest.mark.timeout(RUN_TIMEOUT_S + 60)]


def test_cluster_is_whole_after_random_operations(tmp_path: Path) -> None:
    options = ["--seed", str(SEED), "--operations", str(OPERATIONS)]
    run = run_program("tests.healing", *options, directory=tmp_path, timeout_s=RUN_TIMEOUT_S)
    assert run.report["faults"] == [], run.said
    assert run.code == 0, run.said
    assert sum(run.report["operations"].values()) == OPERATIONS
    assert set(run.report["operations"]) <= {*CLIENTS, *ACTS}
    assert run.report["files"] > 0
    assert run.report["packed"] > 0  # small blobs are among what all this was done to


def test_content_depends_on_seed_and_number_alone() -> None:
    first, again, other = Content(1, 2), Content(1, 2), Content(2, 1)
    assert (first.sha256, first.size_bytes) == (again.sha256, again.size_bytes)
    assert first.sha256 != other.sha256
    assert len(first.bytes()) == first.size_bytes
    assert SIZE_BYTES_MIN <= first.size_bytes <= SIZE_BYTES_MAX


def test_outcomes_are_summed_without_the_names_of_files() -> None:
    outcomes = {"upload: stored 01a2-b3c 77aa0011": 1, "upload: stored 99c4-d5e 12345678": 2, "read: 503": 3}
    assert summed(outcomes) == {"upload: stored": 3, "read: 503": 3}
