"""Invitations in the state machine: a link is for one user, works once, and ends with many things."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.machine.people import invitations
from metadata.protocol import commands, people_queries
from tests.unit.state import ADMIN, HOUR_MS, State, put_user


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def invite(user_id: str, secret: str = "digest", **changes: Any) -> commands.CreateInvitation:
    command = commands.CreateInvitation(
        caller=ADMIN, user_id=user_id, roles=None, groups=None, secret_sha256=secret, ttl_seconds=3600
    )
    return msgspec.structs.replace(command, **changes)


def redeem(secret: str = "digest") -> commands.RedeemInvitation:
    return commands.RedeemInvitation(secret_sha256=secret)


def check(secret: str = "digest") -> people_queries.CheckInvitation:
    return people_queries.CheckInvitation(secret_sha256=secret)


def test_link_of_a_new_user_works_once(state: State) -> None:
    made = state.done(invite("alice", groups=["netlab"]))
    assert made == {
        "user_id": "alice",
        "created_by": "admin",
        "created_at_ms": 1_000_000,
        "expires_at_ms": 1_000_000 + HOUR_MS,
        "used_at_ms": 0,
    }
    assert state.ask(check())["user_id"] == "alice"
    state.at_ms += 1
    user = state.done(redeem())
    assert (user["user_id"], user["groups"], user["generation"]) == ("alice", ["netlab"], 1)
    refused = state.apply(redeem())
    assert (refused, refused.details) == ("gone", "This invitation was used.")
    assert state.ask(check()) == "gone"
    (listed,) = state.ask(people_queries.ListInvitations(caller=ADMIN))["invitations"]
    assert listed["used_at_ms"] == 1_000_001


def test_lost_answer_is_repeated_and_uses_nothing_more(state: State) -> None:
    state.done(invite("alice"))
    session = state.done(commands.OpenSession(nonce="", number=7))
    first = state.apply(redeem(), session=session, sequence=1)
    assert state.apply(redeem(), session=session, sequence=1) == first
    assert state.apply(redeem(), session=session, sequence=2) == "gone"


def test_newer_link_ends_the_one_before(state: State) -> None:
    state.done(invite("alice"))
    state.done(invite("alice", "digest 2"))
    assert state.apply(redeem()) == "not_found"
    assert state.done(redeem("digest 2"))["user_id"] == "alice"
    state.done(invite("alice", "digest 3"))  # for somebody who has lost the token
    assert state.done(redeem("digest 3"))["user_id"] == "alice"
    assert state.apply(invite("bob", "digest 3")) == "conflict"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (put_user("alice", disabled=True), "not_found"),
        (commands.RevokeUser(caller=ADMIN, user_id="alice"), "not_found"),
        (commands.DeleteUser(caller=ADMIN, user_id="alice"), "not_found"),
        (commands.RevokeInvitation(caller=ADMIN, user_id="alice"), "not_found"),
        (put_user("boss", disabled=True), "gone"),
        (put_user("boss", roles=[]), "gone"),
        (commands.DeleteUser(caller=ADMIN, user_id="boss"), "gone"),
    ],
)
def test_link_ends_with(state: State, command: commands.AnyCommand, code: str) -> None:
    boss = state.user("boss", roles=["admin"])
    state.done(invite("alice", caller=boss))
    state.done(command)
    state.done(put_user("alice", disabled=False))
    assert (state.apply(redeem()), state.ask(check())) == (code, code)


def test_link_ends_with_its_time_and_stays_visible_for_a_month(state: State) -> None:
    state.done(invite("alice"))
    state.at_ms += HOUR_MS
    assert state.apply(redeem()) == "gone"
    state.at_ms += invitations.RETENTION_MS - 1
    state.done(commands.Expire())
    assert len(state.ask(people_queries.ListInvitations(caller=ADMIN))["invitations"]) == 1
    state.at_ms += 1
    state.done(commands.Expire())
    assert state.ask(people_queries.ListInvitations(caller=ADMIN))["invitations"] == []


def test_disabled_user_gets_no_link_and_users_make_none(state: State) -> None:
    alice = state.user("alice")
    assert state.apply(invite("bob", caller=alice)) == "forbidden"
    assert state.apply(commands.RevokeInvitation(caller=alice, user_id="bob")) == "forbidden"
    assert state.ask(people_queries.ListInvitations(caller=alice)) == "forbidden"
    assert state.apply(commands.RevokeInvitation(caller=ADMIN, user_id="bob")) == "not_found"
    state.done(put_user("alice", disabled=True))
    assert state.apply(invite("alice")) == "conflict"


def test_unknown_secret_is_not_found(state: State) -> None:
    assert (state.apply(redeem("")), state.ask(check("guess"))) == ("not_found", "not_found")


def test_list_comes_in_pages(state: State) -> None:
    for name in ("b", "a", "c"):
        state.done(invite(name, name))
        state.at_ms += 1
    page = state.ask(people_queries.ListInvitations(caller=ADMIN, limit=2))
    assert ([each["user_id"] for each in page["invitations"]], page["next_cursor"]) == (["b", "a"], 2)
    page = state.ask(people_queries.ListInvitations(caller=ADMIN, limit=2, cursor=2))
    assert ([each["user_id"] for each in page["invitations"]], page["next_cursor"]) == (["c"], 0)
