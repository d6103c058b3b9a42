"""What commands mean changes for all coordinators at one place of the log, and for none before."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import msgspec
import pytest

from coordinator.storage.state_store import Store, TooOld
from metadata.model.records import DEFAULT_BUCKET_ID
from metadata.protocol import commands, rules
from metadata.protocol.commands import SESSION_NUMBER_MIN
from metadata.protocol.rules import FIRST, RULES
from tests.unit.state import ADMIN, State, certificate, create, dump, grant, join, join_token, public_token


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """Of a cluster whose coordinators do not all know newer rules."""
    made = State(tmp_path / "state.sqlite", rules=FIRST)
    made.nodes("n1")
    yield made
    made.store.close()


def raise_to(version: int) -> commands.RaiseRules:
    return commands.RaiseRules(version=version)


def test_size_beyond_the_quota_is_refused_from_the_rules_on_that_say_so(state: State) -> None:
    state.apply(commands.UpdateBucket(caller=ADMIN, bucket_id=DEFAULT_BUCKET_ID, name=None, quota_bytes=10))
    for file_uuid in ("f1", "f2"):
        state.apply(create(ADMIN, file_uuid))
    declare = commands.DeclareSize(caller=ADMIN, file_uuid="f1", size_bytes=11)
    later = msgspec.structs.replace(declare, file_uuid="f2")
    before, raised, after = state.apply_batch(declare, raise_to(2), later)
    assert (before["size_bytes"], raised, after) == (11, 2, "payload_too_large")


def test_expired_certificate_that_proves_a_renewal_stays_from_the_rules_on_that_say_so(state: State) -> None:
    state.at_ms = certificate("serial-n1").not_after_ms + 1
    new = msgspec.structs.replace(certificate("serial-n1"), not_after_ms=2 * state.at_ms)

    def renew(proved: str, made: str) -> commands.RenewCertificate:
        made_one = msgspec.structs.replace(new, serial=made, not_after_ms=state.at_ms + 1)
        return commands.RenewCertificate(node_id="n1", proved_serial=proved, certificate=made_one)

    assert state.apply(renew("serial-n1", "second"))["serial"] == "second"
    assert state.apply(renew("serial-n1", "third")) == "unauthorized"
    state.at_ms += 2
    assert state.apply(raise_to(2)) == 2
    assert state.apply(renew("second", "third"))["serial"] == "third"
    assert state.apply(renew("second", "fourth"))["serial"] == "fourth"


def test_session_has_the_number_that_was_drawn_from_the_rules_on_that_say_so(state: State) -> None:
    first, second = (commands.OpenSession(nonce="", number=SESSION_NUMBER_MIN + each) for each in (1, 2))
    assert state.apply(first) == state.log_index
    before, raised, after = state.apply_batch(first, raise_to(4), second)
    assert (before, raised, after) == (state.log_index - 2, 4, second.number)


def test_join_token_that_was_used_ends_with_its_maker_from_the_rules_on_that_say_so(state: State) -> None:
    maker, revoke = state.user("maker", roles=["admin"]), commands.RevokeUser(caller=ADMIN, user_id="maker")
    state.done(join_token("t1", caller=maker, uses_max=9))
    for node_id in ("n2", "n3"):
        state.done(join("t1", node_id))
        state.done(revoke)
    state.done(raise_to(4))
    state.done(join("t1", "n4"))
    state.done(revoke)
    assert state.apply(join("t1", "n5")) == "unauthorized"


def test_generations_of_users_go_by_the_clock_from_the_rules_on_that_say_so(state: State) -> None:
    revoke = commands.RevokeUser(caller=ADMIN, user_id="alice")
    state.at_ms = 1_800_000_000_000
    assert state.user("alice").generation == 1
    state.done(revoke)
    assert state.user("alice").generation == 2
    state.done(raise_to(4))
    seconds = (state.at_ms - 1_577_836_800_000) // 1000
    for expected in (seconds, seconds + 1):
        state.done(revoke)
        assert state.user("alice").generation == expected
    state.at_ms += 60_000
    assert state.user("bob").generation == seconds + 60
    state.done(revoke)
    assert state.user("alice").generation == seconds + 60


def test_rules_are_never_lowered(state: State) -> None:
    assert state.store.rules() == FIRST
    for version, expected in ((2, 2), (1, 2), (0, 2)):
        assert state.apply(raise_to(version)) == expected
        assert state.store.rules() == expected


def test_rules_that_this_program_does_not_know_end_it_before_it_applies_them(state: State) -> None:
    before = dump(state.path)
    with pytest.raises(TooOld, match=f"rules {RULES + 1}"):
        state.apply_batch(create(ADMIN, "f1"), raise_to(RULES + 1))
    assert dump(state.path) == before


class FromThenOn(commands.Command, frozen=True, kw_only=True, tag="from_then_on"):
    """A command that newer programs alone know."""


def test_newer_rules_end_a_program_before_it_reads_what_it_does_not_know(state: State) -> None:
    before, unknown = dump(state.path), cast("commands.AnyCommand", FromThenOn())
    with pytest.raises(TooOld, match=f"rules {RULES + 1}"):
        state.apply_batch(create(ADMIN, "f1"), raise_to(RULES + 1), unknown)
    assert dump(state.path) == before


def test_state_by_newer_rules_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "newer.sqlite"
    with closing(Store(path)) as store:
        store._writer.execute("INSERT INTO rules (one, version) VALUES (1, ?)", (RULES + 1,))
    with pytest.raises(TooOld):
        Store(path)


def test_digests_by_different_rules_differ(state: State, tmp_path: Path) -> None:
    newer = State(tmp_path / "newer.sqlite", rules=RULES)
    with closing(newer.store):
        newer.nodes("n1")
        assert newer.apply(commands.HashState())["digest"] != state.apply(commands.HashState())["digest"]


def test_life_from_the_time_of_the_leader_waits_for_coordinators_that_know_it() -> None:
    """An older one would apply the command without it: a permission without end."""
    for command in (grant(ADMIN, "file:f1", "user:bob"), public_token(ADMIN, "f1", "t1")):
        assert rules.needed(command) == FIRST
        assert rules.needed(msgspec.structs.replace(command, ttl_seconds=1)) == rules.ENDS_ARE_COUNTED
