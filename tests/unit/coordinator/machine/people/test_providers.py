"""People of identity providers in the state machine: who becomes a user, what a provider gives and takes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metadata.model.providers import PROVIDERS_MAX, PersonIdentity, Provider
from metadata.model.records import Caller
from metadata.protocol import commands, people_queries, queries
from tests.unit.state import ADMIN, State, put_user

ISSUER = "https://login.uni.example"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    made.done(configured("uni"))
    yield made
    made.store.close()


def configured(name: str, issuer: str = ISSUER) -> commands.PutProvider:
    provider = Provider(name=name, label=name, issuer=issuer, client_id="filestore", allowed_groups=["*"])
    return commands.PutProvider(caller=ADMIN, provider=provider, secret=b"", command_secret=b"")


def person(**changes: Any) -> PersonIdentity:
    """A student, as the provider describes it at this sign-in."""
    fields: dict[str, Any] = {
        "provider": "uni",
        "issuer": ISSUER,
        "subject": "7f3a",
        "name": "uni:alice",
        "groups": ["netlab"],
        "is_admin": False,
        "is_allowed": True,
    }
    return PersonIdentity(**(fields | changes))


def admit(state: State, user_id: str = "uni:alice", **changes: Any) -> Any:
    """What the leader does at a sign-in of a person that it believes to be this user, "" for a new one."""
    return state.apply(commands.AdmitIdentity(identity=person(**changes), user_id=user_id))


def groups(state: State, user_id: str = "uni:alice") -> Any:
    return state.ask(queries.FindUser(caller=ADMIN, user_id=user_id))["groups"]


def roles(state: State, user_id: str = "uni:alice") -> Any:
    return state.ask(queries.FindUser(caller=ADMIN, user_id=user_id))["roles"]


def test_provider_takes_back_the_role_that_it_gave_and_no_other(state: State) -> None:
    assert admit(state, "", is_admin=True)["roles"] == ["admin"]
    assert admit(state)["roles"] == []
    state.done(put_user("uni:alice", roles=["admin", "service"]))  # by an administrator
    assert admit(state, is_admin=True)["roles"] == ["admin", "service"]
    assert admit(state)["roles"] == ["admin", "service"]


def test_person_who_may_not_sign_in_becomes_no_user(state: State) -> None:
    assert admit(state, "", is_allowed=False) == "forbidden"
    assert state.ask(queries.FindUser(caller=ADMIN, user_id="uni:alice")) == "not_found"


def test_person_who_may_no_longer_sign_in_loses_what_the_provider_gave_and_every_token(state: State) -> None:
    generation = admit(state, "", is_admin=True)["generation"]
    state.done(put_user("uni:alice", groups=["local-one"]))
    own = queries.GetUser(caller=Caller("uni:alice", generation))
    assert state.ask(own)["user_id"] == "uni:alice"
    admit(state, is_admin=True, is_allowed=False)
    assert (roles(state), groups(state)) == ([], ["local-one"])
    assert state.ask(own) == "unauthorized"


def test_disabled_user_is_not_signed_in(state: State) -> None:
    admit(state, "")
    state.done(put_user("uni:alice", disabled=True))
    assert admit(state, groups=["staff"]) == "forbidden"
    assert groups(state) == ["netlab"]
    known = state.ask(people_queries.MatchIdentity(identity=person()))
    assert known["is_recorded"] is False  # so the leader asks the state machine, which refuses


def test_person_is_no_other_user_of_the_name(state: State) -> None:
    state.done(put_user("uni:alice", roles=["admin"]))  # who never signed in
    assert admit(state) == "conflict"
    assert admit(state, "")["user_id"] == "uni:alice-2"
    assert admit(state, "", name="uni:alice-2") == "conflict"  # another sign-in was first
    state.done(commands.DeleteUser(caller=ADMIN, user_id="uni:alice-2"))
    state.done(put_user("uni:alice-2", roles=["admin"]))  # somebody else
    assert admit(state, "uni:alice-2") == "conflict"
    assert admit(state, "")["user_id"] == "uni:alice-3"


def test_answer_of_a_provider_that_was_removed_or_moved_admits_nobody(state: State) -> None:
    admit(state, "")
    state.done(configured("uni", "https://login.other.example"))
    match = people_queries.MatchIdentity(identity=person())
    assert (admit(state), state.ask(match)) == ("conflict", "conflict")
    moved = {"issuer": "https://login.other.example"}  # whose subject of this name is another person
    assert admit(state, "", **moved)["user_id"] == "uni:alice-2"
    state.done(commands.DeleteProvider(caller=ADMIN, name="uni"))
    assert (admit(state, "uni:alice-2", **moved), state.ask(match)) == ("conflict", "conflict")


def test_provider_with_another_name_replaces_the_groups_that_it_gave_before(state: State) -> None:
    admit(state, "", groups=["netlab", "staff"])
    state.done(commands.DeleteProvider(caller=ADMIN, name="uni"))
    state.done(configured("campus"))
    assert admit(state, provider="campus")["groups"] == ["netlab"]


def test_issuer_belongs_to_one_provider_and_there_are_a_few(state: State) -> None:
    assert state.apply(configured("twin")) == "conflict"
    for number in range(1, PROVIDERS_MAX):
        state.done(configured(f"p{number}", f"https://{number}.example"))
    assert state.apply(configured("beyond", "https://beyond.example")) == "conflict"
    state.done(configured("uni", "https://moved.example"))  # one that is known can still be changed
