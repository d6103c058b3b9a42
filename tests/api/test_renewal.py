"""A user's own token over HTTP: another one for it while it lives, and when it ends."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.expectations import USER, check_refused, check_shape, person, unique
from tests.cluster.harness import Answer, Cluster

TOKEN = {"token": str, "token_type": str, "user_id": str, "expires_at": str, "roles": list, "groups": list}
MONTH = timedelta(days=30)


def renew(cluster: Cluster, token: str | None, **fields: Any) -> Answer:
    answer = cluster.post("/auth/token", fields or None, token=token, stranger=True)
    if answer.status == 200:
        cluster.remember(answer.json["token"])
    return answer


def ends_in(moment: str) -> timedelta:
    return datetime.fromisoformat(moment) - datetime.now(UTC)


def claims_of(token: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))


def test_another_token_is_had_for_one_that_lives(cluster: Cluster) -> None:
    user = person(cluster, roles=["r"], groups=["g"], ttl_seconds=60)
    answer = renew(cluster, user.token)
    assert answer.status == 200
    check_shape(answer.json, TOKEN)
    assert answer.headers["cache-control"] == "no-store"
    assert (answer.json["token_type"], answer.json["user_id"]) == ("Bearer", user.id)
    assert (answer.json["roles"], answer.json["groups"]) == (["r"], ["g"])
    assert MONTH - timedelta(minutes=1) < ends_in(answer.json["expires_at"]) <= MONTH
    for token in (answer.json["token"], user.token):  # which lives on
        for node in cluster.nodes:
            assert cluster.get("/auth/whoami", token=token, node=node).json["user_id"] == user.id
    again = renew(cluster, answer.json["token"], ttl_seconds=5)
    assert timedelta(0) < ends_in(again.json["expires_at"]) <= timedelta(seconds=5)


def test_token_has_the_rights_that_the_user_has_now(cluster: Cluster) -> None:
    user = person(cluster, roles=["admin"], groups=["old"])
    cluster.request("PUT", f"/auth/users/{user.id}", body={"roles": ["r"], "groups": ["new"]})
    answer = renew(cluster, user.token)
    assert (answer.json["roles"], answer.json["groups"]) == (["r"], ["new"])
    claims = claims_of(answer.json["token"])
    assert (claims["roles"], claims["groups"]) == (["r"], ["new"])
    check_refused(cluster.get("/auth/users", token=answer.json["token"]), "forbidden")


def test_service_gets_a_token_for_longer(cluster: Cluster) -> None:
    service = person(cluster, roles=["service"])
    answer = renew(cluster, service.token, ttl_seconds=400 * 24 * 3600)
    assert ends_in(answer.json["expires_at"]) > timedelta(days=399)
    for member in cluster.members:
        assert cluster.get("/auth/whoami", token=answer.json["token"], node=member).status == 200


def test_who_was_revoked_or_disabled_gets_none_at_any_member(cluster: Cluster) -> None:
    revoked, disabled, deleted = person(cluster), person(cluster), person(cluster)
    again = renew(cluster, revoked.token).json["token"]
    assert cluster.post("/auth/revoke", {"user_id": revoked.id}).status == 200
    assert cluster.request("PUT", f"/auth/users/{disabled.id}", body={"disabled": True}).status == 200
    assert cluster.request("DELETE", f"/auth/users/{deleted.id}").status == 200
    for member in cluster.members:
        for token in (revoked.token, again, disabled.token, deleted.token):
            url = f"{member.url}/api/v1/auth/token"
            check_refused(cluster.post(url, token=token, stranger=True), "unauthorized")
    fresh = cluster.user_token(revoked.id)  # what an admin mints is of the new generation
    assert claims_of(renew(cluster, fresh).json["token"])["gen"] > claims_of(again)["gen"]
    check_refused(renew(cluster, again), "unauthorized")


@pytest.mark.parametrize("token", [None, "x", "a.b.c"])
def test_no_token_is_had_for_none(cluster: Cluster, token: str | None) -> None:
    check_refused(renew(cluster, token), "unauthorized")


def test_coordinators_renew_as_well(cluster: Cluster) -> None:
    user = person(cluster)
    for coordinator in cluster.coordinators:
        answer = cluster.post(f"{coordinator.url}/api/v1/auth/token", {"ttl_seconds": 60}, token=user.token)
        token = cluster.remember(answer.json["token"])
        assert cluster.get("/auth/whoami", token=token).status == 200


def test_end_of_the_token_that_was_shown_is_told(cluster: Cluster) -> None:
    user_id = unique("u")
    for ttl_seconds in (60, 3600):
        minted = cluster.post(f"/auth/users/{user_id}/token", {"ttl_seconds": ttl_seconds}).json
        cluster.remember(minted["token"])
        answer = cluster.get("/auth/whoami", token=minted["token"])
        check_shape(answer.json, USER | {"token_expires_at": str})
        assert answer.json["token_expires_at"] == minted["expires_at"]


def test_renewal_is_on_record(cluster: Cluster) -> None:
    user = person(cluster)
    renew(cluster, user.token)
    found = cluster.get(f"/audit?principal={user.id}&action=renew_user_token").json["entries"]
    assert [(entry["target"], entry["outcome"]) for entry in found] == [(user.id, "ok")]
