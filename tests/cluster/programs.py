"""Runs of the long programs beside the tests, `tests.chaos` and `tests.healing`, as processes."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """What a run of a program came to."""

    code: int
    said: str
    report: dict[str, Any]


def run_program(
    module: str,
    *options: str,
    directory: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Run it to its end, in a directory of its own; it must have written its report.

    `environment`: what it finds other than here.
    """
    report = directory / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", module, *options, "--report", report, "--data", directory / "data"],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    said = done.stdout + done.stderr
    assert report.exists(), said
    return Run(done.returncode, said, json.loads(report.read_bytes()))
