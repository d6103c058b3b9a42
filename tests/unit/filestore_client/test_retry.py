"""When an attempt is given up before its deadline."""

import pytest

from filestore_client.base.errors import Unavailable, error_of
from filestore_client.base.retry import FOR_LATER_S, RetryLimits, was_not_sent

LONG_S = 1000.0
UPGRADE = {"Retry-After": "60"}
MOMENT = {"Retry-After": "1"}


def answer(headers: dict[str, str]) -> Unavailable:
    found = error_of(503, headers, b'{"code": "unavailable", "details": "Upgrade members."}', "/api/v1/x")
    assert isinstance(found, Unavailable)
    return found


@pytest.mark.parametrize(("nodes", "answers"), [(1, 2), (2, 2), (3, 3)])
def test_what_needs_an_upgrade_is_given_up_once_each_node_says_so(nodes: int, answers: int) -> None:
    limits = RetryLimits(LONG_S, nodes)
    for _ in range(answers - 1):
        limits.check(answer(UPGRADE), after_s=FOR_LATER_S)
    with pytest.raises(Unavailable, match="Upgrade members"):
        limits.check(answer(UPGRADE), after_s=FOR_LATER_S)


def test_cluster_that_has_just_started_is_given_seconds_to_know_what_its_members_support() -> None:
    limits = RetryLimits(LONG_S, 1)
    for _ in range(10):
        limits.check(answer(UPGRADE), after_s=FOR_LATER_S / 2)
    with pytest.raises(Unavailable, match="Upgrade members"):
        limits.check(answer(UPGRADE), after_s=FOR_LATER_S)


def test_what_may_succeed_in_a_moment_is_tried_until_the_deadline() -> None:
    limits = RetryLimits(LONG_S, 1)
    for _ in range(10):
        limits.check(answer(MOMENT))
        limits.check(answer({}))
        limits.check(answer({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}))


def test_request_that_needs_an_upgrade_was_not_carried_out() -> None:
    assert was_not_sent(answer(UPGRADE))
    assert not was_not_sent(answer(MOMENT))
