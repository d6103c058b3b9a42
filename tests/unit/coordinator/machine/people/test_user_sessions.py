"""Sessions of users in the state machine: recorded with their tokens, ended together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.machine.people import user_sessions
from metadata.model.records import Caller
from metadata.protocol import commands, people_queries, queries
from tests.unit.state import ADMIN, HOUR_MS, State, create, put_user


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def record(session_id: str, user_id: str = "alice", **changes: Any) -> commands.RecordSession:
    command = commands.RecordSession(
        user_id=user_id,
        generation=1,
        session_id=session_id,
        label="laptop",
        created_by="admin",
        ttl_seconds=3600,
    )
    return msgspec.structs.replace(command, **changes)


def of(session: str, user_id: str = "alice", generation: int = 1) -> Caller:
    return Caller(user_id, generation, session=session)


def end(session_id: str, caller: Caller, user_id: str = "alice") -> commands.EndSession:
    return commands.EndSession(caller=caller, user_id=user_id, session_id=session_id)


def listed(state: State, caller: Caller = ADMIN, user_id: str = "alice", **page: int) -> Any:
    answer = state.ask(people_queries.ListSessions(caller=caller, user_id=user_id, **page))
    return answer if isinstance(answer, str) else [each["session_id"] for each in answer["sessions"]]


def whoami(state: State, caller: Caller) -> Any:
    answer = state.ask(queries.GetUser(caller=caller))
    return answer if isinstance(answer, str) else answer["user_id"]


def test_session_is_recorded_once_and_lives_as_long_as_its_longest_token(state: State) -> None:
    state.user("alice")
    state.done(record("s1"))
    state.at_ms += 1000
    state.done(record("s1", label="token", created_by="alice", ttl_seconds=60))
    page = state.ask(people_queries.ListSessions(caller=of("s1"), user_id="alice"))
    assert page["sessions"] == [
        {
            "session_id": "s1",
            "label": "laptop",
            "created_by": "admin",
            "created_at_ms": 1_000_000,
            "renewed_at_ms": 1_001_000,
            "expires_at_ms": 1_000_000 + HOUR_MS,
        }
    ]
    state.at_ms += HOUR_MS
    assert listed(state) == []


def test_ended_session_is_rejected_everywhere_and_gets_no_token(state: State) -> None:
    state.user("alice")
    state.done(record("s1"))
    state.done(record("s2"))
    state.done(end("s1", of("s2")))
    assert (whoami(state, of("s1")), whoami(state, of("s2"))) == ("unauthorized", "alice")
    assert whoami(state, Caller("alice", 1)) == "alice"  # as a member of an older release sends it
    assert state.apply(create(of("s1"), "f1")) == "unauthorized"
    assert state.apply(record("s1")) == "unauthorized"
    assert listed(state) == ["s2"]
    assert state.done(end("s1", of("s2"))) is None  # again


def test_end_holds_for_the_next_command_of_the_batch(state: State) -> None:
    state.user("alice")
    state.done(record("s1"))
    values = state.apply_batch(create(of("s1"), "f1"), end("s1", of("s1")), create(of("s1"), "f2"))
    assert values[2] == "unauthorized"


def test_token_that_was_never_recorded_is_ended_by_its_bearer_alone(state: State) -> None:
    state.user("alice")
    state.user("bob")
    assert state.apply(end("old", of("other"))) == "not_found"
    assert state.apply(end("old", ADMIN)) == "not_found"
    state.done(end("old", of("old")))
    assert whoami(state, of("old")) == "unauthorized"
    assert whoami(state, of("old", "bob")) == "bob"
    assert listed(state) == []


def test_sessions_of_others_need_the_role_admin(state: State) -> None:
    state.user("alice")
    state.user("bob")
    state.done(record("s1"))
    bob = of("s2", "bob")
    assert listed(state, bob) == "forbidden"
    assert state.apply(end("s1", bob)) == "forbidden"
    assert state.apply(end("s1", bob, "bob")) == "not_found"
    assert state.apply(commands.EndSessions(caller=bob, user_id="alice")) == "forbidden"
    assert whoami(state, of("s1")) == "alice"
    state.done(end("s1", ADMIN))
    assert whoami(state, of("s1")) == "unauthorized"


@pytest.mark.parametrize("by", ["end all", "revoke", "delete"])
def test_every_token_ends_with_the_generation(state: State, by: str) -> None:
    state.user("alice")
    state.done(record("s1"))
    command: commands.AnyCommand = commands.EndSessions(caller=of("s1"), user_id="alice")
    if by == "revoke":
        command = commands.RevokeUser(caller=ADMIN, user_id="alice")
    elif by == "delete":
        command = commands.DeleteUser(caller=ADMIN, user_id="alice")
    state.done(command)
    assert whoami(state, of("s1")) == "unauthorized"
    assert state.apply(record("s3")) == "unauthorized"  # the leader had read the user before
    state.user("alice")
    assert listed(state) == []


def test_session_of_a_disabled_user_comes_back_with_it(state: State) -> None:
    state.user("alice")
    state.done(record("s1"))
    state.done(put_user("alice", disabled=True))
    assert whoami(state, of("s1")) == "unauthorized"
    assert state.apply(record("s2")) == "unauthorized"
    state.done(put_user("alice", disabled=False))
    assert whoami(state, of("s1")) == "alice"


def test_user_has_so_many_sessions_and_no_more(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_sessions, "SESSIONS_MAX", 2)
    state.user("alice")
    state.done(record("s1", ttl_seconds=60))
    state.done(record("s2"))
    assert state.apply(record("s3")) == "conflict"
    state.done(record("s1", ttl_seconds=60))
    state.at_ms += 60_000
    state.done(record("s3"))
    assert listed(state) == ["s2", "s3"]


def test_expired_session_is_deleted_after_every_clock_has_rejected_its_tokens(state: State) -> None:
    state.user("alice")
    state.done(record("s1"))
    state.done(end("s1", of("s1")))
    state.at_ms += HOUR_MS + user_sessions.KEPT_MS - 1
    state.done(commands.Expire())
    assert whoami(state, of("s1")) == "unauthorized"
    state.at_ms += 1
    state.done(commands.Expire())
    assert not any("user_sessions" in line and "INSERT" in line for line in state.dump())


def test_list_comes_in_pages(state: State) -> None:
    state.user("alice")
    for name in ("b", "a", "c"):
        state.done(record(name))
        state.at_ms += 1
    first = state.ask(people_queries.ListSessions(caller=ADMIN, user_id="alice", limit=2))
    assert ([each["session_id"] for each in first["sessions"]], first["next_cursor"]) == (["b", "a"], 2)
    assert listed(state, cursor=2) == ["c"]
