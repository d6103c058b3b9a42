"""What a restored state admits of what it has forgotten, and what it keeps from before."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.machine.nodes import ISSUED_LATER_MS
from metadata.protocol import commands, people_queries, queries
from tests.unit.state import ADMIN, HOUR_MS, State, certificate, complete, create, join, join_token

SNAPSHOT_MS, RESTORED_MS = 1_000_000_000, 2_000_000_000


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """Three nodes whose certificates are of before the snapshot."""
    made = State(tmp_path / "state.sqlite")
    with closing(made.store):
        made.at_ms = SNAPSHOT_MS
        made.nodes("n1", "n2", "n3")
        with made.store._writer as db:
            db.execute("UPDATE certificates SET not_before_ms = ?", (SNAPSHOT_MS,))
        yield made


def restored(state: State, history: str = "cafe", *, at_ms: int = RESTORED_MS) -> None:
    state.at_ms = at_ms
    state.done(commands.RecordRestore(history=history))


def admit(
    serial: str, not_before_ms: int = SNAPSHOT_MS + HOUR_MS, *, node_id: str = "n1"
) -> commands.AdmitCertificate:
    of = msgspec.structs.replace(certificate(serial), pem="", public_key_sha256="")
    return commands.AdmitCertificate(
        node_id=node_id, certificate=msgspec.structs.replace(of, not_before_ms=not_before_ms)
    )


def serials(state: State, node_id: str = "n1") -> list[str]:
    """Of the certificates of a node that are live."""
    view: dict[str, Any] = state.ask(queries.GetView())
    return list(view["node_serials"].get(node_id, []))


def test_forgotten_certificate_is_recorded_and_the_older_ones_of_the_node_end(state: State) -> None:
    restored(state)
    version = state.ask(queries.GetView())["version"]
    for _ in range(2):  # two workers of a node dial at once
        state.done(admit("renewed"))
    assert serials(state) == ["renewed"]
    assert serials(state, "n2") == ["serial-n2"]
    assert state.ask(queries.GetView())["version"] > version
    assert state.apply(admit("renewed before", SNAPSHOT_MS + HOUR_MS - 1000)) == "unauthorized"
    state.done(admit("renewed later", SNAPSHOT_MS + 2 * HOUR_MS))
    assert serials(state) == ["renewed later"]
    assert state.apply(admit("renewed")) == "unauthorized"  # its end is recorded


def renewed_since(state: State) -> None:
    new = msgspec.structs.replace(certificate("new"), not_before_ms=RESTORED_MS)
    renew = commands.RenewCertificate(node_id="n1", proved_serial="serial-n1", certificate=new)
    assert state.done(renew)["serial"] == "new"


def revoked(state: State) -> None:
    state.done(commands.RevokeNode(caller=ADMIN, node_id="n1"))


def replaced(state: State) -> None:
    """The node is removed, and another machine joins under its name."""
    state.done(commands.RemoveNode(caller=ADMIN, node_id="n1", force=True, is_gone=True))
    while state.done(commands.RecountReplicas(rows_max=10))["more"]:
        pass
    state.done(join_token("again"))
    new = msgspec.structs.replace(certificate("other"), not_before_ms=RESTORED_MS)
    state.done(msgspec.structs.replace(join("again", "n1"), certificate=new))


def removed(state: State) -> None:
    state.done(commands.RemoveNode(caller=ADMIN, node_id="n1", force=True, is_gone=True))


@pytest.mark.parametrize("change", [renewed_since, revoked, replaced, removed])
def test_forgotten_certificate_is_refused_after(state: State, change: Callable[[State], None]) -> None:
    restored(state)
    change(state)
    before = serials(state)
    assert state.apply(admit("forgotten")) == "unauthorized"
    assert serials(state) == before


@pytest.mark.parametrize(
    ("not_before_ms", "node_id"),
    [
        (SNAPSHOT_MS, "n1"),  # not newer than what the snapshot knows: replaced or revoked before it
        (SNAPSHOT_MS - HOUR_MS, "n1"),
        (RESTORED_MS + ISSUED_LATER_MS + 1, "n1"),  # the old cluster still issues
        (SNAPSHOT_MS + HOUR_MS, "n9"),  # joined after the snapshot
    ],
)
def test_certificate_of_no_known_node_or_of_another_time_is_refused(
    state: State, not_before_ms: int, node_id: str
) -> None:
    restored(state)
    assert state.apply(admit("strange", not_before_ms, node_id=node_id)) == "unauthorized"


def test_certificate_that_was_revoked_before_the_snapshot_stays_revoked(state: State) -> None:
    """The node joined anew since. The old certificate's time may be any: a clock was ahead."""
    with state.store._writer as db:
        db.execute("UPDATE certificates SET not_before_ms = ? WHERE node_id = 'n1'", (SNAPSHOT_MS + HOUR_MS,))
    revoked(state)
    restored(state)
    state.done(join_token("again", node_id="n1"))
    new = msgspec.structs.replace(certificate("other"), not_before_ms=SNAPSHOT_MS)
    state.done(msgspec.structs.replace(join("again", "n1"), certificate=new))
    for serial in ("serial-n1", "unknown"):
        assert state.apply(admit(serial)) == "unauthorized"
    assert serials(state) == ["other"]


def test_cluster_that_was_never_restored_admits_no_unknown_certificate(state: State) -> None:
    state.at_ms = RESTORED_MS
    assert state.apply(admit("forgotten")) == "unauthorized"


def test_restore_of_a_restored_cluster_admits_what_the_first_one_issued(state: State) -> None:
    for history, at_ms in (("cafe", RESTORED_MS), ("beef", RESTORED_MS + HOUR_MS)):
        restored(state, history, at_ms=at_ms)
        assert rows(state, "SELECT history, restored_at_ms FROM restores") == [(history, at_ms)]
    state.done(admit("of the first", RESTORED_MS + ISSUED_LATER_MS + HOUR_MS))


def rows(state: State, sql: str) -> list[Any]:
    with closing(sqlite3.connect(state.path)) as db:
        return db.execute(sql).fetchall()


def test_unfinished_uploads_go_on_in_epochs_that_no_forgotten_takeover_has_reached(state: State) -> None:
    """A second restore of the same snapshot, a second later, begins above the takeovers of the first."""
    state.done(create(ADMIN, "f1", placement=["n1", "n2"]))
    epochs = []
    for at_ms in (RESTORED_MS, RESTORED_MS + 60_000):
        restored(state, at_ms=at_ms)
        epochs += rows(state, "SELECT epoch FROM uploads")
    assert epochs == [(RESTORED_MS // 1000,), (RESTORED_MS // 1000 + 60,)]
    restored(state, at_ms=0)  # a clock that was set back
    assert rows(state, "SELECT epoch FROM uploads") == [(RESTORED_MS // 1000 + 61,)]


def test_tokens_and_links_that_work_once_end_as_they_may_have_been_used_since(state: State) -> None:
    """Those that were used before the snapshot stay listed as used."""
    state.done(join_token("unused"))
    state.done(join_token("half used", uses_max=2))
    state.done(join("half used", "n4"))
    for name in ("alice", "bob"):
        invitation = commands.CreateInvitation(
            caller=ADMIN,
            user_id=name,
            roles=None,
            groups=None,
            secret_sha256=f"sha {name}",
            ttl_seconds=86_400,
        )
        state.done(invitation)
    redeemed = commands.RedeemInvitation(secret_sha256="sha bob")
    state.done(redeemed)
    restored(state, at_ms=state.at_ms + 1000)
    listed = state.ask(queries.ListJoinTokens(caller=ADMIN))["join_tokens"]
    assert all(each["uses"] == each["uses_max"] for each in listed)
    for token_id in ("unused", "half used"):
        assert state.apply(join(token_id, "n5")) == "unauthorized"
    again = state.apply(join("half used", "n4"))  # a repeated request has the same key
    assert again == "unauthorized"
    left = state.ask(people_queries.ListInvitations(caller=ADMIN))["invitations"]
    assert [(each["user_id"], each["used_at_ms"] > 0) for each in left] == [("bob", True)]
    assert state.apply(commands.RedeemInvitation(secret_sha256="sha alice")) == "not_found"


def test_replica_that_was_surplus_is_kept_and_counted_and_what_gc_has_collected_goes(state: State) -> None:
    """The replicas for whose sake it was given up may be gone by now."""
    for file_uuid, sha256 in (("f1", "a" * 64), ("f2", "b" * 64)):
        state.done(create(ADMIN, file_uuid))
        state.done(complete(ADMIN, file_uuid, sha256, replicas=["n1", "n2", "n3"]))
    state.done(commands.DeleteFile(caller=ADMIN, kind="project_file", file_uuid="f2"))
    with state.store._writer as db:
        db.execute("UPDATE blob_replicas SET doomed_at = 7 WHERE node_id = 'n1' OR sha256 = ?", ("b" * 64,))
        db.execute("UPDATE blobs SET collected_at = 7 WHERE sha256 = ?", ("b" * 64,))
    restored(state)
    doomed = rows(state, "SELECT sha256, node_id FROM blob_replicas WHERE doomed_at IS NOT NULL")
    assert doomed == [("b" * 64, node_id) for node_id in ("n1", "n2", "n3")]
    assert rows(state, "SELECT node_id FROM recounts") == [("n1",)]
    while state.done(commands.RecountReplicas(rows_max=10))["more"]:
        pass
    assert rows(state, "SELECT replicas, doomed FROM replica_totals WHERE node_id = 'n1'") == [(2, 1)]
