"""Spans of a file: compared with a set of byte numbers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from node.base.spans import Coverage

SIZE = 40
SPANS = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda span: sorted(span)))


@given(SPANS)
def test_coverage_holds_what_a_set_of_bytes_holds(spans: list[list[int]]) -> None:
    coverage, model = Coverage(), set[int]()
    for start, stop in spans:
        coverage.add(start, stop)
        model |= set(range(start, stop))
        assert coverage.size_bytes == len(model)
    assert {at for start, stop in coverage.spans for at in range(start, stop)} == model
    missing = {at for start, stop in coverage.gaps(SIZE) for at in range(start, stop)}
    assert missing == set(range(SIZE)) - model
    prefix = next(at for at in range(SIZE + 1) if at not in model)
    assert coverage.prefix_bytes == prefix


@given(SPANS)
def test_spans_are_ascending_and_do_not_touch(spans: list[list[int]]) -> None:
    edges = [edge for span in Coverage((start, stop) for start, stop in spans).spans for edge in span]
    assert all(before < after for before, after in itertools.pairwise(edges))


def test_gaps_end_with_the_file() -> None:
    coverage = Coverage([(2, 4), (8, 12)])
    assert list(coverage.gaps(10)) == [(0, 2), (4, 8)]
    assert list(coverage.gaps(3)) == [(0, 2)]
    assert list(coverage.gaps(0)) == []
