"""Members, users and sessions in the state machine: joins, renewals, duplicate suppression, determinism."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.machine.expiry import JOIN_TOKEN_RETENTION_MS
from coordinator.storage.state_store import Store
from metadata.model.records import Caller
from metadata.model.rules import REVOKED_TOKENS_STAY_KNOWN
from metadata.protocol import commands, queries
from metadata.protocol.commands import SESSIONS_MAX
from tests.unit.state import (
    ADMIN,
    HOUR_MS,
    State,
    bootstrap,
    certificate,
    complete,
    create,
    dump,
    join,
    join_token,
)


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    yield made
    made.store.close()


def uses(state: State, token_id: str) -> int:
    tokens = state.ask(queries.ListJoinTokens(caller=ADMIN))["join_tokens"]
    return next(int(token["uses"]) for token in tokens if token["token_id"] == token_id)


def test_join_consumes_its_token_and_registers_the_node(state: State) -> None:
    state.apply(join_token("t1"))
    assert state.apply(join("t1", "n1"))["serial"] == "serial-n1"
    assert uses(state, "t1") == 1
    assert [node["node_id"] for node in state.ask(queries.GetView())["nodes"]] == ["n1"]
    assert state.store.certificate_is_live("n1", "serial-n1")
    assert state.apply(join("t1", "n2")) == "unauthorized"


@pytest.mark.parametrize(
    ("token", "attempt"),
    [
        ({}, {"token_id": "unknown"}),
        ({}, {"secret_sha256": "wrong"}),
        ({}, {"secret_sha256": "wröng"}),
        ({"ttl_seconds": 0}, {}),
        ({"node_id": "n2"}, {}),
        ({"uses_max": 0}, {}),
    ],
)
def test_bad_join_token_is_unauthorized_and_changes_nothing(
    state: State, token: dict[str, object], attempt: dict[str, object]
) -> None:
    state.apply(join_token("t1", **token))
    attempted = msgspec.structs.replace(join("t1", "n1"), **attempt)
    check = queries.CheckJoinToken(
        token_id=attempted.token_id,
        secret_sha256=attempted.secret_sha256,
        node_id="n1",
        public_key_sha256="key",
    )
    assert state.ask(check) == "unauthorized"
    before = state.dump()
    assert state.apply(attempted) == "unauthorized"
    unchanged = [line for line in state.dump() if '"applied"' not in line]
    assert unchanged == [line for line in before if '"applied"' not in line]


def test_same_token_id_and_key_get_the_same_certificate_for_ten_minutes(state: State) -> None:
    state.apply(join_token("t1"))
    first = state.apply(join("t1", "n1"))
    again = join("t1", "n1", certificate=certificate("other-serial"))
    state.at_ms += HOUR_MS // 6 - 1
    assert state.apply(again) == first
    assert uses(state, "t1") == 1
    other_key = join("t1", "n1", certificate=certificate("third-serial", key="other"))
    assert state.apply(other_key) == "unauthorized"
    state.at_ms += 1
    assert state.apply(again) == "unauthorized"


def admitted(token_id: str, coordinator_id: str = "c2", attempt: str = "a") -> commands.AdmitCoordinator:
    return commands.AdmitCoordinator(
        token_id=token_id,
        secret_sha256=join(token_id, "n1").secret_sha256,
        coordinator_id=coordinator_id,
        attempt_sha256=attempt,
    )


def test_token_admits_one_coordinator_once_and_the_same_attempt_for_ten_minutes(state: State) -> None:
    state.apply(join_token("t1"))
    assert state.apply(admitted("t1")) is None
    state.at_ms += HOUR_MS // 6 - 1
    assert state.apply(admitted("t1")) is None
    assert uses(state, "t1") == 1
    assert state.apply(admitted("t1", attempt="another machine")) == "unauthorized"
    assert state.apply(admitted("t1", coordinator_id="c3")) == "unauthorized"
    assert state.apply(join("t1", "n1")) == "unauthorized"
    state.at_ms += 1
    assert state.apply(admitted("t1")) == "unauthorized"


def test_token_that_admits_no_node_admits_no_coordinator(state: State) -> None:
    state.apply(join_token("bound", node_id="c2"))
    assert state.apply(admitted("bound")) == "unauthorized"
    state.apply(join_token("used"))
    state.apply(join("used", "n1"))
    assert state.apply(admitted("used")) == "unauthorized"
    state.apply(join_token("gone"))
    state.apply(commands.DeleteJoinToken(caller=ADMIN, token_id="gone"))
    assert state.apply(admitted("gone")) == "unauthorized"
    state.apply(join_token("late"))
    wrong = msgspec.structs.replace(admitted("late"), secret_sha256="0" * 64)
    assert state.apply(wrong) == "unauthorized"
    state.at_ms += 24 * HOUR_MS
    assert state.apply(admitted("late")) == "unauthorized"


def test_taken_node_id_is_a_conflict_unless_its_certificate_is_proved(state: State) -> None:
    state.nodes("n1")
    state.apply(join_token("t2"))
    assert state.apply(join("t2", "n1", certificate=certificate("s2", key="k2"))) == "conflict"
    assert uses(state, "t2") == 0
    proved = join("t2", "n1", certificate=certificate("s2", key="k2"), proved_serial="serial-n1")
    assert state.apply(proved)["serial"] == "s2"


def test_renewal_needs_the_live_certificate_of_the_same_node(state: State) -> None:
    state.nodes("n1", "n2")
    renewal = commands.RenewCertificate(
        node_id="n1", proved_serial="serial-n2", certificate=certificate("new")
    )
    assert state.apply(renewal) == "unauthorized"
    good = commands.RenewCertificate(node_id="n1", proved_serial="serial-n1", certificate=certificate("new"))
    assert state.apply(good)["serial"] == "new"
    assert state.store.certificate_is_live("n1", "new")
    assert state.store.certificate_is_live("n1", "serial-n1")


def test_newest_intermediate_is_that_of_the_log_whatever_the_clock_says(state: State) -> None:
    nobody = msgspec.structs.replace(ADMIN, subject="nobody")
    add = commands.AddIntermediate(caller=ADMIN, pem="second", wrapped=b"2")
    assert state.apply(msgspec.structs.replace(add, caller=nobody)) == "unauthorized"
    assert state.store.key("intermediate")[1] != "second"
    state.at_ms += HOUR_MS
    state.apply(add)
    state.at_ms -= HOUR_MS
    state.apply(msgspec.structs.replace(add, pem="third", wrapped=b"3"))
    assert state.store.key("intermediate")[1:] == ("third", b"3")


def test_join_tokens_are_the_admins_business(state: State) -> None:
    alice = state.user("alice")
    assert state.apply(join_token("t1", caller=alice)) == "forbidden"
    assert state.ask(queries.ListJoinTokens(caller=alice)) == "forbidden"
    state.apply(join_token("t1"))
    assert state.apply(join_token("t1")) == "conflict"
    assert state.apply(commands.DeleteJoinToken(caller=alice, token_id="t1")) == "forbidden"
    assert state.apply(commands.DeleteJoinToken(caller=ADMIN, token_id="t1")) is None
    assert state.apply(commands.DeleteJoinToken(caller=ADMIN, token_id="t1")) == "not_found"


@pytest.mark.parametrize("is_used", [False, True])
def test_revoked_token_is_made_by_nobody_again_until_a_day_after_its_end(state: State, is_used: bool) -> None:
    state.apply(join_token("t1", uses_max=2))
    if is_used:
        state.apply(join("t1", "n1"))
    state.apply(commands.DeleteJoinToken(caller=ADMIN, token_id="t1"))
    assert state.apply(join_token("t1")) == "conflict"
    for secret in ("digest", ""):
        assert state.apply(join("t1", "n1", secret_sha256=secret)) == "unauthorized"
    assert state.ask(queries.ListJoinTokens(caller=ADMIN))["join_tokens"] == []
    state.at_ms += HOUR_MS + JOIN_TOKEN_RETENTION_MS - 1
    state.apply(commands.Expire())
    assert state.apply(join_token("t1")) == "conflict"
    state.at_ms += 1
    state.apply(commands.Expire())
    assert state.apply(join_token("t1"))["uses"] == 0


def test_older_rules_forget_a_revoked_token_at_once(tmp_path: Path) -> None:
    state = State(tmp_path / "older.sqlite", rules=REVOKED_TOKENS_STAY_KNOWN - 1)
    state.apply(join_token("t1"))
    state.apply(commands.DeleteJoinToken(caller=ADMIN, token_id="t1"))
    assert state.apply(join_token("t1"))["uses"] == 0
    state.store.close()


def test_admin_moves_a_node_to_another_address_and_nobody_else_does(state: State) -> None:
    state.nodes("n1")
    move = commands.MoveNode(caller=ADMIN, node_id="n1", address="files1.lab.example")
    assert state.apply(msgspec.structs.replace(move, caller=state.user("alice"))) == "forbidden"
    assert state.apply(msgspec.structs.replace(move, node_id="n2")) == "not_found"
    before = state.ask(queries.GetView())
    assert state.apply(move)["address"] == "files1.lab.example"
    moved = state.ask(queries.GetView())
    assert moved["version"] != before["version"]
    assert state.apply(move)["address"] == "files1.lab.example"
    assert state.ask(queries.GetView()) == moved


def test_announced_peer_port_changes_the_view(state: State) -> None:
    state.nodes("n1")
    before = state.ask(queries.GetView())
    announce = commands.AnnounceNode(node_id="n1", peer_port=7001, zone="rack", weight=2)
    assert state.apply(announce)["peer_port"] == 7001
    after = state.ask(queries.GetView())
    assert after["version"] > before["version"]
    assert after["nodes"][0]["zone"] == "rack"
    unknown = commands.AnnounceNode(node_id="n9", peer_port=1, zone="", weight=1)
    assert state.apply(unknown) == "not_found"


def test_admitting_a_user_stores_roles_and_groups_sorted_and_none_leaves_them(state: State) -> None:
    admit = commands.AdmitUser(caller=ADMIN, user_id="alice", roles=["b", "a", "a"], groups=["g"])
    assert state.apply(admit)["roles"] == ["a", "b"]
    again = state.apply(commands.AdmitUser(caller=ADMIN, user_id="alice", roles=None, groups=[]))
    assert (again["roles"], again["groups"]) == (["a", "b"], [])
    forbidden = commands.AdmitUser(caller=Caller("alice", 1), user_id="eve", roles=["admin"], groups=None)
    assert state.apply(forbidden) == "forbidden"


def test_role_taken_away_holds_for_tokens_that_carry_it(state: State) -> None:
    alice = state.user("alice")
    state.apply(commands.AdmitUser(caller=ADMIN, user_id="alice", roles=["admin"], groups=None))
    assert state.ask(queries.CheckAdmin(caller=alice))["user_id"] == "alice"
    state.apply(commands.AdmitUser(caller=ADMIN, user_id="alice", roles=[], groups=None))
    assert state.ask(queries.CheckAdmin(caller=alice)) == "forbidden"


def test_retried_command_is_applied_once(state: State) -> None:
    session = state.apply(commands.OpenSession(nonce="x"))
    state.nodes("n1", "n2")
    first = state.apply(create(ADMIN, "f1"), session=session, sequence=1, acknowledged_below=1)
    again = state.apply(create(ADMIN, "f1"), session=session, sequence=1, acknowledged_below=1)
    assert again == first
    unsuppressed = state.apply(create(ADMIN, "f1"))
    assert unsuppressed == "invalid_request"


def test_session_has_the_number_that_its_process_has_drawn(state: State) -> None:
    drawn = commands.OpenSession(nonce="", number=commands.SESSION_NUMBER_MIN)
    assert [state.apply(drawn), state.apply(drawn)] == [drawn.number, drawn.number]
    state.nodes("n1", "n2")
    first = state.apply(create(ADMIN, "f1"), session=drawn.number, sequence=1, acknowledged_below=1)
    assert state.apply(drawn) == drawn.number  # once more: its answer was lost
    assert state.apply(create(ADMIN, "f1"), session=drawn.number, sequence=1) == first


def test_number_of_a_session_that_may_be_a_log_index_to_come_is_not_taken(state: State) -> None:
    for number in (state.log_index + 3, commands.SESSION_NUMBER_MIN - 1):
        assert state.apply(commands.OpenSession(nonce="", number=number)) == state.log_index
    assert state.apply(commands.OpenSession(nonce="")) == state.log_index


def test_refusals_are_remembered_too(state: State) -> None:
    session = state.apply(commands.OpenSession(nonce="x"))
    delete = commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind="")
    assert state.apply(delete, session=session, sequence=1) == "not_found"
    state.apply(create(ADMIN, "f1"))
    assert state.apply(delete, session=session, sequence=1) == "not_found"
    assert state.apply(delete, session=session, sequence=2, acknowledged_below=2) is None


def test_late_copy_of_a_change_that_the_client_is_done_with_is_not_applied(state: State) -> None:
    session = state.apply(commands.OpenSession(nonce="x"))
    make = join_token("t1")
    state.apply(make, session=session, sequence=1, acknowledged_below=1)
    delete = commands.DeleteJoinToken(caller=ADMIN, token_id="t1")
    state.apply(delete, session=session, sequence=2, acknowledged_below=2)
    assert state.apply(make, session=session, sequence=1, acknowledged_below=1) == "unavailable"
    assert state.ask(queries.ListJoinTokens(caller=ADMIN))["join_tokens"] == []


def test_concurrent_changes_of_a_session_are_applied_in_any_order(state: State) -> None:
    session = state.apply(commands.OpenSession(nonce="x"))
    assert (
        state.apply(join_token("t2"), session=session, sequence=2, acknowledged_below=1)["token_id"] == "t2"
    )
    assert (
        state.apply(join_token("t1"), session=session, sequence=1, acknowledged_below=1)["token_id"] == "t1"
    )


def test_join_tokens_are_listed_in_pages_in_the_order_of_the_log(state: State) -> None:
    for number in range(3):
        state.at_ms -= 10  # a clock that runs back changes nothing
        state.apply(join_token(f"t{number}"))
    first = state.ask(queries.ListJoinTokens(caller=ADMIN, limit=2))
    rest = state.ask(queries.ListJoinTokens(caller=ADMIN, cursor=first["next_cursor"]))
    assert [t["token_id"] for t in first["join_tokens"] + rest["join_tokens"]] == ["t0", "t1", "t2"]
    assert rest["next_cursor"] == 0


def test_acknowledged_replies_are_forgotten(state: State) -> None:
    session = state.apply(commands.OpenSession(nonce="x"))
    for sequence in range(1, 6):
        command = create(ADMIN, f"f{sequence}")
        state.apply(command, session=session, sequence=sequence, acknowledged_below=sequence)
    assert sum('INSERT INTO "replies"' in line for line in state.dump()) == 1


def test_command_of_an_ended_session_is_not_applied(state: State) -> None:
    assert state.apply(create(ADMIN, "f1"), session=999, sequence=1) == "session_ended"
    assert state.ask(queries.GetProjectFile(caller=ADMIN, file_uuid="f1")) == "not_found"


def test_longest_unused_session_ends_first(state: State) -> None:
    first = state.apply(commands.OpenSession(nonce=""))
    second = state.apply(commands.OpenSession(nonce=""))
    for _ in range(SESSIONS_MAX - 2):
        state.apply(commands.OpenSession(nonce=""))
    state.apply(create(ADMIN, "f1"), session=first, sequence=1)
    state.apply(commands.OpenSession(nonce=""))
    assert state.apply(create(ADMIN, "f2"), session=second, sequence=1) == "session_ended"
    assert state.apply(create(ADMIN, "f3"), session=first, sequence=2)["file_uuid"] == "f3"


commands_strategy = st.lists(
    st.one_of(
        st.builds(lambda f: create(ADMIN, f), st.sampled_from(["f1", "f2", "f3"])),
        st.builds(
            lambda f, s: complete(ADMIN, f, s, ["n1", "n2"]),
            st.sampled_from(["f1", "f2", "f3"]),
            st.sampled_from(["aa", "bb"]),
        ),
        st.builds(
            lambda f: commands.DeleteFile(caller=ADMIN, file_uuid=f, kind=""),
            st.sampled_from(["f1", "f2", "f3"]),
        ),
        st.builds(lambda n: join_token(f"t-{n}"), st.sampled_from(["n1", "n2"])),
        st.builds(lambda n: join(f"t-{n}", n), st.sampled_from(["n1", "n2"])),
        st.just(commands.OpenSession(nonce="")),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=commands_strategy, batch=st.integers(1, 7))
def test_same_log_builds_the_same_database_whatever_the_batches(
    tmp_path_factory: pytest.TempPathFactory, program: list[commands.AnyCommand], batch: int
) -> None:
    directory = tmp_path_factory.mktemp("determinism")
    one = State(directory / "one.sqlite")
    one.nodes("n1", "n2")
    for command in program:
        one.apply(command)
    other = Store(directory / "other.sqlite")
    for start in range(0, len(one.entries), batch):
        other.apply(one.entries[start : start + batch])
    one.store.close()
    other.close()
    assert dump(directory / "one.sqlite") == dump(directory / "other.sqlite")


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=commands_strategy)
def test_references_and_sums_equal_what_counting_finds(
    tmp_path_factory: pytest.TempPathFactory, program: list[commands.AnyCommand]
) -> None:
    state = State(tmp_path_factory.mktemp("sums") / "state.sqlite")
    state.nodes("n1", "n2")
    for command in program:
        state.apply(command)
    files = state.ask(queries.ListProjectFiles(caller=ADMIN))["files"]
    available = [file["blob_sha256"] for file in files if file["status"] == "available"]
    for sha256 in ("aa", "bb"):
        blob = state.ask(queries.FindBlob(sha256=sha256))
        assert (blob["reference_count"] if blob else 0) == available.count(sha256)
    total_files, total_blobs, total_bytes = state.store.totals()
    assert (total_files, total_blobs, total_bytes) == (
        len(files),
        len(set(available)),
        5 * len(set(available)),
    )
    state.store.close()


def test_bootstrap_is_the_first_entry_only(state: State) -> None:
    with pytest.raises(AssertionError, match="begins once"):
        state.apply(bootstrap())


def test_join_token_that_was_used_ends_with_what_its_maker_had(state: State) -> None:
    state.done(join_token("t1", caller=state.user("maker", roles=["admin"]), uses_max=9))
    state.done(join("t1", "n2"))
    state.done(commands.RevokeUser(caller=ADMIN, user_id="maker"))
    assert state.apply(join("t1", "n3")) == "unauthorized"


def test_expired_certificate_that_proves_a_renewal_stays(state: State) -> None:
    """The answer may be lost, and the node asks again with it."""
    state.nodes("n1")
    state.at_ms = certificate("serial-n1").not_after_ms + 1
    new = msgspec.structs.replace(certificate("serial-n1"), not_after_ms=2 * state.at_ms)
    for serial in ("second", "third"):
        made = msgspec.structs.replace(new, serial=serial)
        renewal = commands.RenewCertificate(node_id="n1", proved_serial="serial-n1", certificate=made)
        assert state.apply(renewal)["serial"] == serial
