"""Which node a range is asked of."""

import pytest

from node.peer.source_choice import REST_S_MAX, REST_S_MIN, NodeChoice

URLS = ("a", "b", "c")


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_unknown_nodes_are_asked_in_turn(clock: Clock) -> None:
    choice = NodeChoice(URLS, now=clock)
    assert [choice.take().url for _ in range(4)] == ["a", "b", "c", "a"]


def test_slow_node_gets_a_connection_only_when_the_fast_ones_have_many(clock: Clock) -> None:
    choice = NodeChoice(URLS[:2], now=clock)
    slow, fast = choice.take(), choice.take()
    choice.record_throughput(slow, 1 << 20, 1.0)
    choice.record_throughput(fast, 4 << 20, 1.0)
    choice.release(slow)
    choice.release(fast)
    assert [choice.take().url for _ in range(4)] == ["b", "b", "b", "a"]


def test_tiny_range_tells_no_rate(clock: Clock) -> None:
    choice = NodeChoice(URLS, now=clock)
    node = choice.take()
    choice.record_throughput(node, 10, 0.1)
    assert node.bytes_per_s == 0


def test_silent_node_is_slow(clock: Clock) -> None:
    choice = NodeChoice(URLS, now=clock)
    node = choice.take()
    choice.record_throughput(node, 0, 5.0)
    assert node.bytes_per_s == 1.0


def test_node_that_failed_rests_longer_each_time(clock: Clock) -> None:
    choice = NodeChoice(URLS[:2], now=clock)
    node = choice.take()
    rests = []
    for _ in range(8):
        choice.note_failure(node)
        rests.append(node.rests_until_s - clock.now_s)
    assert rests[:3] == [REST_S_MIN, 2 * REST_S_MIN, 4 * REST_S_MIN]
    assert rests[-1] == REST_S_MAX
    assert {choice.take().url for _ in range(3)} == {"b"}
    clock.now_s += REST_S_MAX
    assert choice.take().url == "a"


def test_when_all_rest_the_first_to_wake_is_asked(clock: Clock) -> None:
    choice = NodeChoice(URLS, now=clock)
    for node in [choice.take() for _ in URLS]:
        clock.now_s += 0.01
        choice.note_failure(node)
    assert not choice.any_awake()
    assert choice.take().url == "a"
