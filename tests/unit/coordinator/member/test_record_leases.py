"""The leader's leases and blocks in every order: nobody keeps a record past the command that changes it."""

import pytest

from ca.errors import Unavailable
from coordinator.member import record_leases
from coordinator.member.record_leases import DRIFT_SHARE, LEASE_S, CacheLeases
from metadata.protocol.invalidation import EVERYTHING

TERM = 7
KEYS = frozenset({"file:f"})


@pytest.fixture
def leases() -> CacheLeases:
    """Of a leader whose first lease has passed; it is 100 s on its clock."""
    made = CacheLeases()
    made.lead(TERM, at_s=0.0)
    return made


def subscribe(leases: CacheLeases, name: str, at_s: float = 100.0) -> int:
    """The version that it knows now."""
    reply = leases.grant(name, 0, 0, received_at_s=at_s)
    assert reply.lease_s > 0
    return reply.version


def test_nobody_is_waited_for_where_nobody_subscribed(leases: CacheLeases) -> None:
    assert leases.wait_s(leases.block(KEYS, at_s=100.0), at_s=100.0) <= 0


def test_block_waits_until_every_subscriber_has_acknowledged_it(leases: CacheLeases) -> None:
    subscribe(leases, "a"), subscribe(leases, "b")

    block = leases.block(KEYS, at_s=100.1)

    assert leases.wait_s(block, at_s=100.1) == pytest.approx(LEASE_S - 0.1)
    assert leases.acknowledge("a", TERM, block.version) == []
    assert leases.wait_s(block, at_s=100.2) > 0
    assert leases.acknowledge("b", TERM, block.version) == [block]
    assert leases.wait_s(block, at_s=100.2) <= 0


def test_acknowledgement_of_less_or_of_another_term_frees_nothing(leases: CacheLeases) -> None:
    known = subscribe(leases, "a")
    block = leases.block(KEYS, at_s=100.0)

    assert leases.acknowledge("a", TERM, known) == []
    assert leases.acknowledge("a", TERM - 1, block.version) == []
    assert leases.acknowledge("stranger", TERM, block.version) == []
    assert leases.wait_s(block, at_s=100.0) > 0


def test_silent_subscriber_is_waited_for_until_its_lease_has_run_out(leases: CacheLeases) -> None:
    subscribe(leases, "a", 100.0)
    block = leases.block(KEYS, at_s=101.0)

    assert leases.wait_s(block, at_s=100.0 + LEASE_S - 0.01) > 0
    assert leases.wait_s(block, at_s=100.0 + LEASE_S) <= 0


def test_node_is_told_less_than_the_leader_waits_for(leases: CacheLeases) -> None:
    assert leases.grant("a", 0, 0, received_at_s=100.0).lease_s == pytest.approx(LEASE_S * (1 - DRIFT_SHARE))


def test_subscriber_that_comes_after_the_block_is_told_and_not_waited_for(leases: CacheLeases) -> None:
    block = leases.block(KEYS, at_s=100.0)

    reply = leases.grant("a", 0, 0, received_at_s=100.0)

    assert reply.blocked == ["file:f"]
    assert leases.wait_s(block, at_s=100.0) <= 0


def test_subscriber_that_returns_after_a_lapse_is_told_what_is_blocked_still(leases: CacheLeases) -> None:
    known = subscribe(leases, "a", 100.0)
    block = leases.block(KEYS, at_s=101.0)
    assert leases.wait_s(block, at_s=103.0) <= 0

    reply = leases.grant("a", TERM, known, received_at_s=103.0)

    assert reply.blocked == ["file:f"]
    assert reply.lease_s > 0


def test_block_ends_when_it_is_released_and_not_before(leases: CacheLeases) -> None:
    known = subscribe(leases, "a")
    block = leases.block(KEYS, at_s=100.0)
    leases.acknowledge("a", TERM, block.version)
    assert leases.grant("a", TERM, block.version, received_at_s=100.1).blocked == ["file:f"]

    assert leases.release(block)

    reply = leases.grant("a", TERM, block.version, received_at_s=100.2)
    assert reply.blocked == []
    assert reply.version > block.version > known
    assert not leases.release(block)


def test_key_that_two_commands_block_is_free_after_the_second(leases: CacheLeases) -> None:
    first, second = leases.block(KEYS, at_s=100.0), leases.block(KEYS, at_s=100.0)

    leases.release(first)
    assert leases.news("a").blocked == ["file:f"]
    leases.release(second)
    assert leases.news("a").blocked == []


def test_lease_is_not_renewed_for_who_does_not_acknowledge(leases: CacheLeases) -> None:
    known = subscribe(leases, "a", 100.0)
    block = leases.block(KEYS, at_s=100.1)
    assert leases.grant("a", TERM, known, received_at_s=100.2).lease_s > 0  # it is told now

    assert leases.grant("a", TERM, known, received_at_s=100.5).lease_s == 0

    assert leases.wait_s(block, at_s=100.2 + LEASE_S) <= 0
    assert leases.grant("a", TERM, block.version, received_at_s=100.6).lease_s > 0


def test_write_waits_for_one_lease_at_most_whatever_is_granted_meanwhile(leases: CacheLeases) -> None:
    """No answer reaches these two, and each has a new lease before that of the other ends."""
    known = {"a": subscribe(leases, "a", 100.0), "b": subscribe(leases, "b", 100.9)}
    block = leases.block(KEYS, at_s=101.0)

    assert leases.grant("a", TERM, known["a"], received_at_s=100.0 + LEASE_S).lease_s > 0

    assert leases.wait_s(block, at_s=100.9 + LEASE_S) <= 0


def test_news_leaves_the_lease_as_it_is(leases: CacheLeases) -> None:
    subscribe(leases, "a", 100.0)
    block = leases.block(KEYS, at_s=100.1)

    assert leases.news("a").lease_s == 0

    assert leases.wait_s(block, at_s=100.0) == pytest.approx(LEASE_S)
    assert not leases.is_due("a", at_s=100.1)
    assert leases.is_due("a", at_s=100.5)


def test_subscriber_that_leaves_is_not_waited_for_nor_leased_to_again(leases: CacheLeases) -> None:
    known = subscribe(leases, "a", 100.0)
    block = leases.block(KEYS, at_s=100.1)

    assert leases.leave("a") == [block]
    assert leases.leave("stranger") == []

    assert leases.wait_s(block, at_s=100.1) <= 0
    assert leases.grant("a", TERM, known, received_at_s=100.0).lease_s == 0  # of a call that was under way
    assert leases.live(at_s=100.1) == 0


def test_new_leader_waits_for_the_leases_of_the_one_before() -> None:
    leases = CacheLeases()
    assert leases.lead(TERM, at_s=100.0)

    block = leases.block(KEYS, at_s=100.5)

    assert leases.wait_s(block, at_s=100.5) == pytest.approx(LEASE_S - 0.5)
    assert leases.wait_s(block, at_s=100.0 + LEASE_S) <= 0


def test_blocks_and_subscribers_end_with_the_term(leases: CacheLeases) -> None:
    known = subscribe(leases, "a")
    block = leases.block(KEYS, at_s=100.0)

    assert leases.lead(0, at_s=101.0)
    assert leases.lead(TERM + 2, at_s=102.0)

    assert not leases.release(block)
    assert leases.live(at_s=102.0) == 0
    assert leases.is_behind(TERM, known)
    assert leases.grant("a", TERM, block.version, received_at_s=103.0).blocked == []


def test_only_blocks_are_told_at_once(leases: CacheLeases) -> None:
    known = subscribe(leases, "a")
    assert not leases.is_behind(TERM, known)

    block = leases.block(KEYS, at_s=100.0)
    assert leases.is_behind(TERM, known)
    leases.release(block)

    assert not leases.is_behind(TERM, block.version)
    assert leases.version > block.version


def test_more_keys_than_an_answer_holds_are_everything(
    leases: CacheLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_leases, "REPLY_KEYS_MAX", 2)
    blocks = [leases.block(frozenset({f"file:{n}"}), at_s=100.0) for n in range(3)]

    assert leases.news("a").blocked == list(EVERYTHING)
    leases.release(blocks[0])
    assert leases.news("a").blocked == ["file:1", "file:2"]


def test_too_many_blocks_are_refused(leases: CacheLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_leases, "BLOCKS_MAX", 2)
    leases.block(KEYS, at_s=100.0), leases.block(KEYS, at_s=100.0)

    with pytest.raises(Unavailable):
        leases.block(KEYS, at_s=100.0)


def test_too_many_subscribers_get_no_lease_until_others_have_ended(
    leases: CacheLeases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_leases, "SUBSCRIBERS_MAX", 2)
    subscribe(leases, "a", 100.0), subscribe(leases, "b", 101.0)

    assert leases.grant("c", 0, 0, received_at_s=101.5).lease_s == 0
    assert leases.grant("c", 0, 0, received_at_s=102.5).lease_s > 0
    assert leases.live(at_s=102.5) == 2
