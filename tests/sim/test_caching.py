"""Kept records are never stale in a storm, and each rule is needed: without it some seed shows that."""

from dataclasses import fields

import pytest

from tests.history import Violation, check
from tests.sim.caching import Rules, World

SEEDS = 4
HUNTED_MAX = 40  # each is caught within a tenth of these


def violation(seed: int, rules: Rules | None = None) -> Violation | None:
    return check(World(seed, rules).run().history, initial=0)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_read_from_memory_is_stale(seed: int) -> None:
    world = World(seed).run()

    assert check(world.history, initial=0) is None
    assert world.hits > 100
    assert world.acknowledged > 10
    assert world.elections > 5


@pytest.mark.parametrize("rule", [field.name for field in fields(Rules)])
def test_without_this_rule_a_stale_read_shows(rule: str) -> None:
    broken = Rules(**{rule: False})

    assert any(violation(seed, broken) for seed in range(HUNTED_MAX))
