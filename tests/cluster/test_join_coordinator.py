"""Who is handed the bundle of a cluster, which has its key: once, by a token that was made with that key."""

import base64
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ca.identity import Identity, Role
from ca.jointoken import JoinToken, secret_digest
from ca.keys import new_cluster_key
from ca.setuptoken import SetupToken, new_setup_token
from coordinator.admin.setup import Bundle, bootstrap_of
from coordinator.storage.config import CoordinatorFiles
from deploy.dev_cluster import Member
from tests.cluster.harness import Answer, Cluster

PATH = "/cluster/join/coordinator"


def files_of(cluster: Cluster) -> CoordinatorFiles:
    return CoordinatorFiles(Path(cluster.data(cluster.coordinators[0])))


def minted(cluster: Cluster, *, key: bytes = b"", lives_s: int = 1800) -> SetupToken:
    """A setup token that the cluster knows; with another key, as an admin without a coordinator would."""
    cluster_key = key or files_of(cluster).read_cluster_key()
    me = Identity("dev", Role.COORDINATOR, cluster.coordinators[0].id)
    port = cluster.coordinators[0].api_port
    token = new_setup_token(
        cluster_key, "0" * 64, me, "127.0.0.1", port, ends_at_s=int(time.time()) + lives_s
    )
    cluster.remember(token.join.secret)
    body = {"token_id": token.join.token_id, "secret_sha256": secret_digest(token.join.secret)}
    answer = cluster.post("/cluster/join-tokens", body)
    assert (answer.status, answer.json["token"]) == (201, "")
    return token


def asked(
    cluster: Cluster, token: JoinToken | str | None, *, at: Member | None = None, **changes: Any
) -> Answer:
    body = {
        "id": "newcomer",
        "address": "127.0.0.1",
        "peer_port": 19997,
        "api_port": 19998,
        "attempt": secrets.token_urlsafe(32),
        **changes,
    }
    bearer = token.bearer if isinstance(token, JoinToken) else token
    member = at or cluster.coordinators[0]
    return cluster.post(PATH, stranger=True, node=member, body=body, token=bearer)


def test_bundle_is_handed_over_once_and_again_to_the_same_attempt(cluster: Cluster) -> None:
    token, attempt = minted(cluster), secrets.token_urlsafe(32)
    first = asked(cluster, token.join, attempt=attempt)
    assert (first.status, first.headers["cache-control"]) == (200, "no-store")
    bundle = msgspec.msgpack.decode(base64.b64decode(first.json["bundle"]), type=Bundle)
    assert bundle.cluster_key == files_of(cluster).read_cluster_key()
    assert bootstrap_of(bundle.genesis).root_pem == files_of(cluster).root.read_text()
    assert bundle.members is not None
    for member in cluster.coordinators:  # whichever leads
        assert asked(cluster, token.join, at=member, attempt=attempt).json == first.json
        assert asked(cluster, token.join, at=member).status == 401
        assert asked(cluster, token.join, at=member, attempt=attempt, id="other").status == 401
    groups = cluster.get("/cluster/ca", token=None).json["coordinators"]
    assert "newcomer" not in [each["coordinator_id"] for each in groups]


def test_rights_in_the_api_alone_make_no_token_that_gets_the_bundle(cluster: Cluster) -> None:
    for token in (minted(cluster, key=new_cluster_key()).join, JoinToken.parse(cluster.join_token())):
        assert asked(cluster, token).status == 401
        tokens = cluster.get("/cluster/join-tokens").json["join_tokens"]
        assert [each["uses"] for each in tokens if each["token_id"] == token.token_id] == [0]


def test_token_that_was_made_known_again_after_its_end_gets_nothing(cluster: Cluster) -> None:
    assert asked(cluster, minted(cluster, lives_s=-3600).join).status == 401


def test_node_hands_nothing_over(cluster: Cluster) -> None:
    answer = asked(cluster, minted(cluster).join, at=cluster.nodes[0])
    assert (answer.status, answer.json["code"]) == (404, "not_found")


@pytest.mark.parametrize("credential", ["none", "garbage", "admin", "unknown"])
def test_stranger_is_told_nothing(cluster: Cluster, credential: str) -> None:
    key, me = files_of(cluster).read_cluster_key(), Identity("dev", Role.COORDINATOR, "c")
    unknown = new_setup_token(key, "0" * 64, me, "127.0.0.1", 1, ends_at_s=int(time.time()) + 60)
    token = {"none": None, "garbage": "x.y", "admin": "", "unknown": unknown.join.bearer}[credential]
    assert asked(cluster, token, id="A B").status == 401


@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
def test_revoked_token_gets_nothing_and_lives_by_no_right_in_the_api_again(
    cluster: Cluster, is_used: bool
) -> None:
    token = minted(cluster)
    if is_used:
        assert asked(cluster, token.join).status == 200
    assert cluster.request("DELETE", f"/cluster/join-tokens/{token.join.token_id}").status == 200
    body = {"token_id": token.join.token_id, "secret_sha256": secret_digest(token.join.secret)}
    again = cluster.post("/cluster/join-tokens", body)
    assert (again.status, again.json["code"]) == (409, "conflict")
    assert asked(cluster, token.join).status == 401
    assert cluster.request("DELETE", f"/cluster/join-tokens/{token.join.token_id}").status == 404
    tokens = cluster.get("/cluster/join-tokens").json["join_tokens"]
    assert token.join.token_id not in [each["token_id"] for each in tokens]


@pytest.mark.parametrize(
    ("changes", "status", "named"),
    [
        ({"id": "A B"}, 400, "id"),
        ({"address": "*.lab.example"}, 400, "address"),
        ({"peer_port": 0}, 400, "peer_port"),
        ({"api_port": True}, 400, "api_port"),
        ({"attempt": "short"}, 400, "attempt"),
        ({"id": "coordinator-2"}, 409, ""),
    ],
    ids=["id", "address", "peer_port", "api_port", "attempt", "taken"],
)
def test_what_would_not_be_let_in_costs_no_token(
    cluster: Cluster, changes: dict[str, Any], status: int, named: str
) -> None:
    token = minted(cluster)
    answer = asked(cluster, token.join, **changes)
    assert (answer.status, answer.json["details"].startswith(f"{named}: " if named else "")) == (status, True)
    assert asked(cluster, token.join).status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"token_id": "setup-x"},
        {"secret_sha256": "0" * 64},
        {"token_id": "x", "secret_sha256": "0" * 64},
        {"token_id": "setup-X", "secret_sha256": "0" * 64},
        {"token_id": "setup-x", "secret_sha256": "0" * 63},
    ],
    ids=range(5),
)
def test_token_made_elsewhere_needs_both_id_and_digest(cluster: Cluster, body: dict[str, str]) -> None:
    answer = cluster.post("/cluster/join-tokens", body)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")


def test_handing_over_is_on_record_and_no_secret_is(cluster: Cluster) -> None:
    token = minted(cluster)
    asked(cluster, token.join, id="on-record")
    audit = files_of(cluster).audit.read_text()
    lines = [line for line in audit.splitlines() if "hand_over_bundle" in line and "on-record" in line]
    assert len(lines) == 1
    assert token.join.token_id in lines[0]
    assert not cluster.leaked_secrets()
