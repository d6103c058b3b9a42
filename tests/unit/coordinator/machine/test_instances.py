"""Who speaks for a node, what ends its certificates at once, and what a removal may be told."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.machine.cluster import KEYS_MAX
from metadata.model.instance import Instance
from metadata.model.records import Caller
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, State, certificate, complete, create, join, join_token

HERE, COPY = "a" * 16, "b" * 16


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "state.sqlite")
    with closing(made.store):
        made.nodes("n1", "n2")
        yield made


def announce(start: int, *, directory: str = HERE, process: int = 0, node_id: str = "n1") -> Any:
    instance = Instance(directory, start, f"{process or start:016x}")
    return commands.AnnounceNode(node_id=node_id, peer_port=7, zone="", weight=1, instance=str(instance))


def node(state: State, node_id: str = "n1") -> dict[str, Any]:
    return next(each for each in state.ask(queries.GetView())["nodes"] if each["node_id"] == node_id)


def test_later_start_of_the_same_directory_speaks_for_its_node(state: State) -> None:
    for start in (1, 2, 2, 5):
        assert state.done(announce(start))["instance"].split(".")[1] == str(start)
    assert node(state)["instance"] == announce(5).instance


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (announce(9, directory=COPY), "another directory"),
        (announce(2), "old copy"),
        (announce(3, process=77), "old copy"),
    ],
)
def test_another_directory_and_an_earlier_copy_are_refused(state: State, told: Any, why: str) -> None:
    state.done(announce(3))
    before = node(state)
    refused = state.apply(told)
    assert refused == "conflict"
    assert why in refused.details
    assert node(state) == before


def test_node_of_an_older_version_tells_no_instance_and_is_taken(state: State) -> None:
    state.done(commands.AnnounceNode(node_id="n1", peer_port=7, zone="", weight=1))
    assert "instance" not in node(state)
    state.done(announce(3))
    state.done(commands.AnnounceNode(node_id="n1", peer_port=8, zone="", weight=1))
    assert node(state)["instance"] == announce(3).instance


def test_malformed_instance_is_refused(state: State) -> None:
    state.done(announce(1))
    told = commands.AnnounceNode(node_id="n1", peer_port=7, zone="", weight=1, instance="x")
    assert state.apply(told) == "invalid_request"


def test_instance_that_is_forgotten_makes_way_and_what_comes_is_compared_first(state: State) -> None:
    state.done(announce(9))
    assert state.apply(commands.ForgetInstance(caller=state.user("alice"), node_id="n1")) == "forbidden"
    assert state.done(commands.ForgetInstance(caller=ADMIN, node_id="n1"))["state"] == "returning"
    assert state.done(announce(2))["instance"] == announce(2).instance


def held(state: State, *nodes: str) -> None:
    state.done(create(ADMIN, "f1", placement=list(nodes)))
    state.done(complete(ADMIN, "f1", "sha", list(nodes)))


def revoke(node_id: str, caller: Caller = ADMIN) -> commands.RevokeNode:
    return commands.RevokeNode(caller=caller, node_id=node_id)


def test_revoked_node_has_no_live_certificate_and_its_replicas_do_not_count(state: State) -> None:
    state.done(announce(1))
    held(state, "n1", "n2")
    assert state.apply(revoke("n1", state.user("alice"))) == "forbidden"
    assert state.apply(revoke("n9")) == "not_found"
    assert state.done(revoke("n1")) == {"replicas": 1}
    assert not state.store.certificate_is_live("n1", "serial-n1")
    shown = state.ask(queries.GetView())
    assert shown["revoked_serials"] == ["serial-n1"]
    assert shown["node_serials"] == {"n2": ["serial-n2"]}
    assert (node(state)["state"], node(state)["revoked"]) == ("down", True)
    while state.done(commands.RecountReplicas(rows_max=10))["more"]:
        pass
    assert [blob["missing"] for blob in short(state)] == [2]


def short(state: State) -> list[dict[str, Any]]:
    found = state.ask(queries.ListShortBlobs(missing_min=1))
    return list(found["blobs"])


def test_heartbeat_that_was_under_way_brings_no_revoked_node_back(state: State) -> None:
    state.done(revoke("n1"))
    for word in ("returning", "healthy"):
        assert state.apply(commands.MarkNode(node_id="n1", state=word)) == "conflict"


def test_revoked_node_is_removed_by_force_at_once(state: State) -> None:
    held(state, "n1", "n2")
    assert state.apply(commands.RemoveNode(caller=ADMIN, node_id="n1", force=True)) == "conflict"
    state.done(revoke("n1"))
    assert state.done(commands.RemoveNode(caller=ADMIN, node_id="n1", force=True)) == {"replicas": 1}


def test_revoked_node_joins_anew_with_a_token_of_its_name_alone(state: State) -> None:
    state.done(announce(4))
    state.done(revoke("n1"))
    state.done(join_token("any"))
    new = certificate("second", "k2")
    refused = state.apply(join("any", "n1", certificate=new))
    assert refused == "conflict"
    assert "token of its name" in refused.details
    state.done(join_token("bound", node_id="n1"))
    state.done(join("bound", "n1", certificate=new))
    assert state.store.certificate_is_live("n1", "second")
    assert not state.store.certificate_is_live("n1", "serial-n1")
    assert node(state)["state"] == "down"  # until it is heard, and has compared its disk
    assert "revoked" not in node(state)
    state.done(announce(1, directory=COPY))


def test_who_says_that_a_node_is_gone_removes_it_while_it_counts_as_healthy(state: State) -> None:
    held(state, "n1", "n2")
    gone = commands.RemoveNode(caller=ADMIN, node_id="n1", force=True, is_gone=True)
    assert state.done(gone) == {"replicas": 1}
    assert [each["node_id"] for each in state.ask(queries.GetView())["nodes"]] == ["n2"]


def test_renewed_certificate_is_told_to_all_members(state: State) -> None:
    before = state.ask(queries.GetView())
    renewal = commands.RenewCertificate(
        node_id="n1", proved_serial="serial-n1", certificate=certificate("next")
    )
    state.done(renewal)
    after = state.ask(queries.GetView())
    assert after["version"] > before["version"]
    assert after["node_serials"] == {"n1": ["next", "serial-n1"], "n2": ["serial-n2"]}


def key(kid: str, grace_ms: int, caller: Caller = ADMIN) -> commands.AddTokenKey:
    return commands.AddTokenKey(
        caller=caller, kid=kid, jwk={"kid": kid}, wrapped=kid.encode(), grace_ms=grace_ms
    )


def kids(state: State) -> list[str]:
    return [jwk["kid"] for jwk in state.ask(queries.GetView())["user_token_keys"]]


def test_next_token_key_ends_the_one_before_after_the_grace_time(state: State) -> None:
    assert state.apply(key("mine", 0, state.user("alice"))) == "forbidden"
    assert state.done(key("k2", 5000)) == {"kid": "k2", "others_end_at_ms": state.at_ms + 5000}
    shown = state.ask(queries.GetView())
    assert (kids(state), shown["token_key_ends"]) == (["k2", "kid"], {"kid": state.at_ms + 5000})
    assert state.store.key("user_token") == ("k2", '{"kid": "k2"}', b"k2")
    state.at_ms += 4999
    state.done(commands.Expire(rows_max=10, tombstone_ms=0))
    assert kids(state) == ["k2", "kid"]
    state.at_ms += 1
    state.done(commands.Expire(rows_max=10, tombstone_ms=0))
    assert kids(state) == ["k2"]
    assert state.ask(queries.GetView())["version"] == state.log_index


def test_next_token_key_without_grace_ends_all_others_at_once(state: State) -> None:
    state.done(key("k2", 9000))
    state.done(key("k3", 0))
    assert kids(state) == ["k3"]


def test_later_grace_does_not_lengthen_an_earlier_one(state: State) -> None:
    state.done(key("k2", 1000))
    state.done(key("k3", 9000))
    ends = state.ask(queries.GetView())["token_key_ends"]
    assert ends == {"kid": state.at_ms + 1000, "k2": state.at_ms + 9000}


def test_so_many_keys_are_valid_at_once_and_no_more(state: State) -> None:
    for number in range(KEYS_MAX - 1):
        state.done(key(f"k{number}", 1000))
    assert state.apply(key("more", 1000)) == "conflict"
    state.done(key("more", 0))
    assert kids(state) == ["more"]
