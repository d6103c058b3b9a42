"""Sessions and invitations over HTTP: who sees and ends them, and links that work once."""

import base64
import json
import threading
from typing import Any

import pytest

from tests.api.expectations import check_refused, check_shape, grant, person, store, unique
from tests.cluster.harness import Answer, Cluster

PROJECT = "/project-files"
SESSION = {
    "session_id": str,
    "label": str,
    "created_by": str,
    "created_at": str,
    "renewed_at": str,
    "expires_at": str,
    "is_current": bool,
}


def sessions(cluster: Cluster, user_id: str, token: str = "") -> list[Any]:
    answer = cluster.get(f"/auth/users/{user_id}/sessions", token=token)
    assert answer.status == 200, answer.body
    return list(answer.json["sessions"])


def whoami(cluster: Cluster, token: str) -> set[int]:
    """What every node says to the token, also from its memory."""
    return {cluster.get("/auth/whoami", token=token, node=node).status for node in cluster.nodes}


def invite(cluster: Cluster, user_id: str, **fields: Any) -> str:
    answer = cluster.post(f"/auth/users/{user_id}/invitation", fields)
    assert answer.status == 201, answer.body
    return cluster.remember(answer.json["token"])


def redeem(cluster: Cluster, secret: Any, *, label: str = "", **options: Any) -> Answer:
    body = {"token": secret, "label": label}
    return cluster.post("/auth/invitations/redeem", body, token=None, stranger=True, **options)


def test_user_sees_and_ends_its_own_sessions(cluster: Cluster) -> None:
    user_id = unique("alice")
    first = cluster.post(f"/auth/users/{user_id}/token", {"label": "laptop"}).json["token"]
    second = cluster.user_token(user_id)
    cluster.remember(first)
    listed = sessions(cluster, user_id, first)
    check_shape(listed[0], SESSION)
    assert [(each["label"], each["created_by"], each["is_current"]) for each in listed] == [
        ("laptop", "admin", True),
        ("token", "admin", False),
    ]
    assert cluster.get("/auth/whoami", token=first).json["session_id"] == listed[0]["session_id"]
    place = f"/auth/users/{user_id}/sessions/{listed[1]['session_id']}"
    assert cluster.request("DELETE", place, token=first).json["deleted"] is True
    assert whoami(cluster, first) == {200}
    check_refused(cluster.get("/auth/whoami", token=second, stranger=True), "unauthorized")
    assert [each["label"] for each in sessions(cluster, user_id, first)] == ["laptop"]


def test_renewed_token_is_of_the_session_and_ends_with_it(cluster: Cluster) -> None:
    user_id = unique("alice")
    first = cluster.user_token(user_id)
    (before,) = sessions(cluster, user_id)
    renewed = cluster.remember(cluster.post("/auth/token", token=first).json["token"])
    again = cluster.remember(cluster.post("/auth/token", token=renewed).json["token"])
    claims = json.loads(base64.urlsafe_b64decode(again.split(".")[1] + "=="))
    assert claims["sid"] == before["session_id"] != claims["jti"]
    (after,) = sessions(cluster, user_id, again)
    assert (after["session_id"], after["is_current"]) == (before["session_id"], True)
    assert after["expires_at"] > before["expires_at"]
    cluster.request("DELETE", f"/auth/users/{user_id}/sessions/{after['session_id']}")
    for token in (first, renewed, again):
        check_refused(cluster.get("/auth/whoami", token=token, stranger=True), "unauthorized")
    check_refused(cluster.post("/auth/token", token=again, stranger=True), "unauthorized")


def test_ended_session_reads_nothing_from_the_memory_of_nodes_and_another_one_does(cluster: Cluster) -> None:
    user_id = unique("reader")
    ended, live = cluster.user_token(user_id), cluster.user_token(user_id)
    file_uuid = store(cluster, PROJECT, b"content")
    grant(cluster, f"/files/{file_uuid}", "read", user_id)
    ticket = cluster.post(f"/files/{file_uuid}/ticket", token=ended).json["url"]
    cluster.remember(ticket.rpartition("/")[2])

    def read(token: str) -> set[int]:
        """Of every node, several times: the second answer is from memory."""
        return {
            cluster.get(f"/files/{file_uuid}", token=token, node=node, stranger=True).status
            for node in cluster.nodes * 3
        }

    assert (read(ended), read(live)) == ({200}, {200})
    assert cluster.get(ticket, token=None).status == 200
    session_id = sessions(cluster, user_id)[0]["session_id"]
    cluster.request("DELETE", f"/auth/users/{user_id}/sessions/{session_id}")
    assert read(ended) == {401}
    assert read(live) == {200}
    assert read(ended) == {401}, "what is kept for the other session answers this one"
    assert cluster.get(ticket, token=None, stranger=True).status == 410


def test_all_sessions_end_at_once_and_permissions_stay(cluster: Cluster) -> None:
    alice = person(cluster, "alice")
    file_uuid = store(cluster, PROJECT, b"content")
    grant(cluster, f"/files/{file_uuid}", "read", alice.id)
    answer = cluster.request("DELETE", f"/auth/users/{alice.id}/sessions", token=alice.token)
    assert answer.json == {"deleted": True, "user_id": alice.id}
    check_refused(cluster.get("/auth/whoami", token=alice.token, stranger=True), "unauthorized")
    assert sessions(cluster, alice.id) == []
    again = cluster.user_token(alice.id)
    assert cluster.get(f"/files/{file_uuid}", token=again).status == 200


def test_sessions_of_others_are_the_business_of_admins(cluster: Cluster) -> None:
    alice, bob = person(cluster, "alice"), person(cluster, "bob")
    (session,) = sessions(cluster, alice.id)
    place = f"/auth/users/{alice.id}/sessions"
    check_refused(cluster.get(place, token=bob.token), "forbidden")
    check_refused(cluster.request("DELETE", place, token=bob.token), "forbidden")
    check_refused(cluster.request("DELETE", f"{place}/{session['session_id']}", token=bob.token), "forbidden")
    own = f"/auth/users/{bob.id}/sessions/{session['session_id']}"
    check_refused(cluster.request("DELETE", own, token=bob.token), "not_found")
    assert whoami(cluster, alice.token) == {200}


def test_invitation_gives_a_new_user_its_first_token_once(cluster: Cluster) -> None:
    user_id, group = unique("student"), unique("netlab")
    made = cluster.post(f"/auth/users/{user_id}/invitation", {"groups": [group]})
    secret = cluster.remember(made.json["token"])
    check_shape(made.json, {"user_id": str, "url": str, "token": str, "expires_at": str})
    assert made.headers["cache-control"] == "no-store"
    assert made.json["url"].endswith(f"/console/#/invitation/{secret}")
    answer = redeem(cluster, secret, label="console, Firefox")
    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    token = cluster.remember(answer.json["token"])
    assert (answer.json["user_id"], answer.json["groups"]) == (user_id, [group])
    assert whoami(cluster, token) == {200}
    (session,) = sessions(cluster, user_id, token)
    assert (session["label"], session["created_by"]) == ("console, Firefox", user_id)
    refused = redeem(cluster, secret)
    check_refused(refused, "gone")
    assert refused.json["details"] == "This invitation was used."
    (listed,) = [
        each
        for each in cluster.get("/auth/invitations?limit=1000").json["invitations"]
        if each["user_id"] == user_id
    ]
    assert listed["used_at"]


def test_ten_at_once_redeem_an_invitation_and_one_gets_the_token(cluster: Cluster) -> None:
    secret = invite(cluster, unique("student"))
    answers: list[Answer] = []
    threads = [
        threading.Thread(
            target=lambda number=number: answers.append(
                redeem(cluster, secret, node=cluster.nodes[number % len(cluster.nodes)])
            )
        )
        for number in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status for answer in answers) == [200] + [410] * 9
    for answer in answers:
        if answer.status == 200:
            cluster.remember(answer.json["token"])


def test_newer_invitation_ends_the_one_before(cluster: Cluster) -> None:
    user_id = unique("student")
    older, newer = invite(cluster, user_id), invite(cluster, user_id)
    check_refused(redeem(cluster, older), "not_found")
    assert cluster.remember(redeem(cluster, newer).json["token"])


@pytest.mark.parametrize("by", ["disabled", "revoked", "deleted", "withdrawn", "its maker disabled"])
def test_invitation_ends_with(cluster: Cluster, by: str) -> None:
    user_id, maker = unique("student"), person(cluster, "maker", roles=["admin"])
    made = cluster.post(f"/auth/users/{user_id}/invitation", token=maker.token)
    secret = cluster.remember(made.json["token"])
    code = "not_found"
    if by == "disabled":
        cluster.request("PUT", f"/auth/users/{user_id}", body={"disabled": True})
        check_refused(cluster.post(f"/auth/users/{user_id}/invitation"), "conflict")
    elif by == "revoked":
        cluster.post("/auth/revoke", {"user_id": user_id})
    elif by == "deleted":
        cluster.request("DELETE", f"/auth/users/{user_id}")
    elif by == "withdrawn":
        place = f"/auth/users/{user_id}/invitation"
        assert cluster.request("DELETE", place).json == {"deleted": True, "user_id": user_id}
        check_refused(cluster.request("DELETE", place), "not_found")
    else:
        cluster.request("PUT", f"/auth/users/{maker.id}", body={"disabled": True})
        code = "gone"
    check_refused(redeem(cluster, secret), code)


@pytest.mark.parametrize(
    "secret", ["", None, 7, "x" * 129, "no-such-secret", "\x00", "<script>", "пароль", ["a"], {"a": 1}]
)
def test_other_texts_are_no_invitation(cluster: Cluster, secret: Any) -> None:
    known = isinstance(secret, str) and 1 <= len(secret) <= 128
    check_refused(redeem(cluster, secret), "not_found" if known else "invalid_request")


def test_guesses_are_slowed_down(cluster: Cluster) -> None:
    body, node = {"token": "a-guess"}, cluster.nodes[0]
    statuses = [
        cluster.post("/auth/invitations/redeem", body, token=None, node=node).status for _ in range(40)
    ]
    assert set(statuses) == {404, 429}
    assert statuses[:5] == [404] * 5


@pytest.mark.parametrize("ttl_seconds", [0, 59, 30 * 86_400 + 1, -1, 1.5, "1h", True])
def test_life_of_an_invitation_is_bounded(cluster: Cluster, ttl_seconds: Any) -> None:
    answer = cluster.post(f"/auth/users/{unique('s')}/invitation", {"ttl_seconds": ttl_seconds})
    check_refused(answer, "invalid_request")


def test_acts_are_audited_without_the_secret(cluster: Cluster) -> None:
    user_id, node = unique("student"), cluster.nodes[1]
    made = cluster.post(f"/auth/users/{user_id}/invitation", node=node)
    secret = cluster.remember(made.json["token"])
    token = cluster.remember(redeem(cluster, secret, node=node).json["token"])
    redeem(cluster, secret, node=node)
    (session,) = sessions(cluster, user_id)
    place = f"/auth/users/{user_id}/sessions"
    cluster.request("DELETE", f"{place}/{session['session_id']}", token=token, node=node)
    cluster.request("DELETE", place, node=node)
    entries = cluster.get("/audit?limit=1000", node=node).json["entries"]
    told = [(each["action"], each["principal"], each["outcome"]) for each in entries]
    for expected in (
        ("invite_user", "admin", "ok"),
        ("redeem_invitation", user_id, "ok"),
        ("redeem_invitation", "-", "gone"),
        ("end_session", user_id, "ok"),
        ("end_sessions", "admin", "ok"),
    ):
        assert expected in told
