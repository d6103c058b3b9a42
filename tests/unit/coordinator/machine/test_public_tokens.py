"""Public tokens in the state machine: made, listed, revoked, and every reason why one does not work."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine import public_tokens
from metadata.model.records import DEFAULT_BUCKET_ID, Caller
from metadata.protocol import commands, queries
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    State,
    complete,
    create,
    create_bucket,
    grant,
    public_token,
    put_user,
    withdraw,
)

DAY_MS = 24 * HOUR_MS
ALICE = Caller("alice", 1)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """The file `f1` of Alice in the bucket `b1`, finished, and `f2` of hers, which is not."""
    made = State(tmp_path / "state.sqlite")
    made.nodes("n1", "n2", "n3")
    made.user("alice")
    made.done(create_bucket(ALICE, "b1"))
    for file_uuid in ("f1", "f2"):
        made.done(create(ALICE, file_uuid, bucket_id="b1"))
    made.done(complete(ALICE, "f1", "aa", ["n1", "n2"]))
    yield made
    made.store.close()


def content(state: State, token_id: str = "t1", bucket_id: str = "b1") -> Any:
    return state.ask(queries.GetPublicContent(bucket_id=bucket_id, token_sha256=f"sha-{token_id}"))


def listed(state: State, caller: Caller = ALICE, **changes: Any) -> Any:
    return state.ask(queries.ListPublicTokens(caller=caller, file_uuid="f1", **changes))


def revoke(caller: Caller, token_id: str, file_uuid: str = "f1") -> commands.RevokePublicToken:
    return commands.RevokePublicToken(caller=caller, file_uuid=file_uuid, token_id=token_id)


def test_token_lives_for_a_day_unless_told_otherwise(state: State) -> None:
    made = state.done(public_token(ALICE, "f1", "t1", bucket_id="b1"))
    assert made == {
        "token_id": "t1",
        "file_uuid": "f1",
        "bucket_id": "b1",
        "created_by": "alice",
        "created_at_ms": state.at_ms,
        "expires_at_ms": state.at_ms + DAY_MS,
        "status": "active",
    }
    assert listed(state) == {"public_tokens": [made], "next_cursor": 0}
    until = state.at_ms + 30 * DAY_MS
    assert state.done(public_token(ALICE, "f1", "t2", expires_at_ms=until))["expires_at_ms"] == until


def test_life_of_a_token_counts_from_the_time_of_the_leader_and_is_bounded(state: State) -> None:
    made = state.done(public_token(ALICE, "f1", "t1", ttl_seconds=60))
    assert made["expires_at_ms"] == state.at_ms + 60_000
    month = public_token(ALICE, "f1", "t2", ttl_seconds=30 * DAY_MS // 1000)
    assert state.done(month)["expires_at_ms"] == state.at_ms + 30 * DAY_MS
    longer = public_token(ALICE, "f1", "t3", ttl_seconds=30 * DAY_MS // 1000 + 1)
    assert state.apply(longer) == "invalid_request"


def test_token_opens_the_content_of_its_file_and_no_other(state: State) -> None:
    state.done(public_token(ALICE, "f1", "t1"))
    found = content(state)
    assert (found["file"]["file_uuid"], found["replicas"]) == ("f1", ["n1", "n2"])
    assert (found.pop("shared_by"), found.pop("link_ends_at_ms")) == ("alice", state.at_ms + DAY_MS)
    asked = state.ask(queries.GetContent(caller=ALICE, file_uuid="f1"))
    assert asked.pop("is_lasting")  # the owner's right ends with no time; a token's does
    assert found == asked


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"expires_at_ms": 999_999}, "expires_at"),
        ({"expires_at_ms": 1_000_000}, "expires_at"),
        ({"expires_at_ms": 1_000_000 + 30 * DAY_MS + 1}, "expires_at"),
        ({"bucket_id": DEFAULT_BUCKET_ID}, "bucket_uuid"),
        ({"bucket_id": "b2"}, "bucket_uuid"),
    ],
)
def test_bad_field_is_named(state: State, changes: dict[str, Any], field: str) -> None:
    refusal = state.apply(public_token(ALICE, "f1", "t1", **changes))
    assert refusal == "invalid_request"
    assert refusal.details.startswith(f"{field}:")
    assert listed(state)["public_tokens"] == []


def test_tokens_are_for_those_with_admin_on_the_file(state: State) -> None:
    bob = state.user("bob")
    state.done(public_token(ALICE, "f1", "t1"))
    state.done(grant(ALICE, "file:f1", "user:bob", "write"))
    assert state.apply(public_token(bob, "f1", "t2")) == "forbidden"
    assert listed(state, bob) == "forbidden"
    assert state.apply(revoke(bob, "t1")) == "forbidden"
    state.done(grant(ALICE, "file:f1", "user:bob", "admin"))
    assert state.done(public_token(bob, "f1", "t2"))["created_by"] == "bob"
    assert state.apply(revoke(bob, "t1")) is None
    for unknown in (public_token(ALICE, "none", "t3"), revoke(ALICE, "t1", "none")):
        assert state.apply(unknown) == "not_found"


def test_taken_id_or_secret_is_a_conflict(state: State) -> None:
    state.done(public_token(ALICE, "f1", "t1"))
    assert state.apply(public_token(ALICE, "f2", "t1", token_sha256="other")) == "conflict"
    assert state.apply(public_token(ALICE, "f2", "t2", token_sha256="sha-t1")) == "conflict"


def test_tokens_of_a_file_are_bounded(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_tokens, "PUBLIC_TOKENS_MAX", 2)
    for token_id in ("t1", "t2"):
        state.done(public_token(ALICE, "f1", token_id))
    assert state.apply(public_token(ALICE, "f1", "t3")) == "conflict"
    state.done(public_token(ALICE, "f2", "t3"))


def test_ended_token_makes_room_for_a_new_one(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_tokens, "PUBLIC_TOKENS_MAX", 2)
    for token_id in ("t1", "t2"):
        state.done(public_token(ALICE, "f1", token_id))
    state.done(revoke(ALICE, "t2"))
    state.done(public_token(ALICE, "f1", "t3"))
    assert [token["token_id"] for token in listed(state)["public_tokens"]] == ["t1", "t3"]
    assert state.apply(public_token(ALICE, "f1", "t4")) == "conflict"


def test_revoked_token_is_gone_and_again_changes_nothing(state: State) -> None:
    for token_id in ("t1", "t2"):
        state.done(public_token(ALICE, "f1", token_id))
    assert state.apply(revoke(ALICE, "t1")) is None
    assert content(state) == "gone"
    before = listed(state)
    assert state.apply(revoke(ALICE, "t1")) is None
    assert listed(state) == before
    assert [token["status"] for token in before["public_tokens"]] == ["revoked", "active"]
    assert content(state, "t2")["file"]["file_uuid"] == "f1"
    assert state.apply(revoke(ALICE, "t3")) == "not_found"
    assert state.apply(revoke(ALICE, "t2", "f2")) == "not_found"


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_tokens_are_listed_in_pages_with_those_that_have_ended(state: State, limit: int) -> None:
    for number in range(4):
        life_ms = (number % 2 + 1) * HOUR_MS
        state.done(public_token(ALICE, "f1", f"t{number}", expires_at_ms=state.at_ms + life_ms))
    state.done(revoke(ALICE, "t3"))
    state.at_ms += HOUR_MS
    seen: list[tuple[str, str]] = []
    cursor = 0
    while True:
        page = listed(state, limit=limit, cursor=cursor)
        seen += [(token["token_id"], token["status"]) for token in page["public_tokens"]]
        assert len(page["public_tokens"]) <= limit
        if not (cursor := page["next_cursor"]):
            break
    assert seen == [("t0", "expired"), ("t1", "active"), ("t2", "expired"), ("t3", "revoked")]


def wait_a_day(state: State) -> None:
    state.at_ms += DAY_MS


def lose_the_grant(state: State) -> None:
    state.done(withdraw(ALICE, "file:f1", "file:f1 user:bob admin"))


def lose_the_grant_by_time(state: State) -> None:
    until = state.at_ms + HOUR_MS
    state.done(grant(ALICE, "file:f1", "user:bob", "admin", expires_at_ms=until))
    state.at_ms = until


def keep_only_read(state: State) -> None:
    state.done(grant(ALICE, "file:f1", "user:bob", "read"))
    lose_the_grant(state)


def be(command: commands.AnyCommand) -> Callable[[State], None]:
    def apply(state: State) -> None:
        state.done(command)

    return apply


@pytest.mark.parametrize(
    "end",
    [
        wait_a_day,
        lose_the_grant,
        keep_only_read,
        lose_the_grant_by_time,
        be(revoke(ALICE, "t1")),
        be(put_user("bob", disabled=True)),
        be(commands.RevokeUser(caller=ADMIN, user_id="bob")),
        be(commands.DeleteUser(caller=ADMIN, user_id="bob")),
    ],
)
def test_token_ends_with_its_time_and_with_what_its_maker_may(
    state: State, end: Callable[[State], None]
) -> None:
    bob = state.user("bob")
    state.done(grant(ALICE, "file:f1", "user:bob", "admin"))
    state.done(public_token(bob, "f1", "t1"))
    assert content(state)["file"]["file_uuid"] == "f1"
    end(state)
    assert content(state) == "gone"


def test_token_ends_when_its_maker_may_only_write(state: State) -> None:
    bob = state.user("bob")
    state.done(grant(ALICE, "file:f1", "user:bob", "admin", permission_id="a"))
    state.done(grant(ALICE, "file:f1", "user:bob", "write", permission_id="w"))
    state.done(public_token(bob, "f1", "t1"))
    state.done(commands.WithdrawPermission(caller=ALICE, target="file", target_id="f1", permission_id="a"))
    assert content(state) == "gone"


def test_token_is_revoked_through_its_own_file_alone(state: State) -> None:
    """Also by somebody who is admin on another file, and knows the id of the link."""
    bob = state.user("bob")
    state.done(public_token(ALICE, "f1", "t1"))
    state.done(grant(ALICE, "file:f2", "user:bob", "admin"))
    command = commands.RevokePublicToken(caller=bob, file_uuid="f2", token_id="t1")
    assert state.apply(command) == "not_found"
    assert content(state)["file"]["file_uuid"] == "f1"


def test_token_of_a_revoked_maker_stays_dead_when_the_permission_comes_back(state: State) -> None:
    bob = state.user("bob")
    state.done(grant(ALICE, "file:f1", "user:bob", "admin"))
    state.done(public_token(bob, "f1", "t1"))
    state.done(commands.RevokeUser(caller=ADMIN, user_id="bob"))
    state.done(grant(ALICE, "file:f1", "user:bob", "admin"))
    assert content(state) == "gone"


def test_unknown_token_and_wrong_bucket_are_not_found_even_when_it_has_ended(state: State) -> None:
    state.done(public_token(ALICE, "f1", "t1"))
    for _ in ("active", "revoked"):
        assert content(state, "t9") == "not_found"
        assert content(state, bucket_id=DEFAULT_BUCKET_ID) == "not_found"
        assert content(state, bucket_id="") == "not_found"
        state.done(revoke(ALICE, "t1"))


def test_end_of_the_token_comes_before_the_state_of_the_content(state: State) -> None:
    state.done(public_token(ALICE, "f2", "t1"))
    assert content(state) == "not_available"
    state.done(revoke(ALICE, "t1", "f2"))
    assert content(state) == "gone"


def tombstone(state: State) -> None:
    """Let the retention period of a file pass."""
    state.done(create(ALICE, "f3", bucket_id="b1", retention_hours=1))
    state.done(complete(ALICE, "f3", "bb", ["n1", "n2"]))
    state.done(public_token(ALICE, "f3", "t3"))
    state.at_ms += 2 * HOUR_MS
    state.done(commands.Expire())


def test_tombstoned_file_is_gone_and_gets_no_token(state: State) -> None:
    tombstone(state)
    assert content(state, "t3") == "gone"
    assert state.apply(public_token(ALICE, "f3", "t4")) == "gone"


def test_token_of_a_deleted_file_is_not_found(state: State) -> None:
    state.done(public_token(ALICE, "f1", "t1"))
    state.done(commands.DeleteFile(caller=ALICE, file_uuid="f1", kind=""))
    assert content(state) == "not_found"
