"""Seeds of random tests: a few for every run, the rest for `make long`. No test is here."""

from typing import Any

import pytest


def seeds(quick: range, long: range) -> list[Any]:
    """Return the parameters of a test: the seeds of every run, and those that only the long suite runs."""
    return [*quick, *(pytest.param(seed, marks=pytest.mark.long) for seed in long)]
