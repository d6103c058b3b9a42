"""Forty seeds of storm and calm. A failure names its seed and the command that replays it."""

import pytest

from tests.sim.network import Simulation


@pytest.mark.parametrize("seed", range(40))
def test_no_promise_is_broken_in_a_storm(seed: int) -> None:
    simulation = Simulation(seed).run()

    assert simulation.committed, "nothing was ever committed"


def test_one_seed_gives_one_run() -> None:
    first, second = (Simulation(7, steps=2000).run() for _ in range(2))

    assert first.committed == second.committed
    assert first.leaders == second.leaders
    assert first.now == second.now
