"""Deliberate bugs, one by one, and whether the tests catch each."""

from tests.mutants.consensus import CONSENSUS

MUTANTS = CONSENSUS

__all__ = ["MUTANTS"]
