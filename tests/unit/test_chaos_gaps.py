"""The longest time that clients of `make chaos` waited around a fault, from when they were answered."""

import pytest

from tests.chaos.gaps import longest_gap_s


@pytest.mark.parametrize(
    ("answered_at", "gap_s"),
    [
        pytest.param([1.0, 2.0, 9.0, 11.0, 12.0], 7.0, id="within"),
        pytest.param([0.0, 1.0, 5.5, 6.0, 10.5], 4.5, id="one that began before the fault"),
        pytest.param([3.0, 4.5, 6.0, 7.5, 9.5, 15.0], 5.5, id="one that ends after it"),
        pytest.param([1.0, 20.0], 19.0, id="one that is longer than the fault"),
        pytest.param(
            [0.0, 3.9, 4.5, 6.0, 7.5, 9.0, 10.5, 30.0], 1.5, id="long ones before and after do not count"
        ),
        pytest.param([4.5, 5.0, 6.0], 4.0, id="nothing more was answered"),
        pytest.param([9.0, 9.5], 5.0, id="nothing was answered before"),
        pytest.param([], 6.0, id="nothing was answered"),
        pytest.param([1.0, 2.0], 8.0, id="everything was answered before"),
        pytest.param([12.0], 8.0, id="everything was answered afterwards"),
    ],
)
def test_longest_gap_is_of_those_that_overlap_the_fault(answered_at: list[float], gap_s: float) -> None:
    assert longest_gap_s(answered_at, 4.0, 10.0) == pytest.approx(gap_s)
