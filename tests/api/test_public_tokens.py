"""Public tokens over HTTP: links that need no credential, made, listed and ended by whoever may."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.expectations import (
    DEFAULT_BUCKET,
    KINDS,
    LISTED_PUBLIC_TOKEN,
    NOBODY,
    OWN_PUBLIC_TOKEN,
    PUBLIC_TOKEN,
    check_refused,
    check_shape,
    create,
    grant,
    pages,
    person,
    store,
    unique,
)
from tests.cluster.harness import Answer, Cluster


@pytest.fixture
def file_uuid(cluster: Cluster) -> str:
    """An available file of the admin's."""
    return store(cluster, "/vms", b"shared")


def share(cluster: Cluster, shared: str, token: str = "", **fields: Any) -> Answer:
    answer = cluster.post(f"/files/{shared}/public-token", fields or None, token=token)
    if answer.status == 201:
        cluster.remember(answer.json["token"])
    return answer


def ends_in(answer: Answer) -> timedelta:
    return datetime.fromisoformat(answer.json["expires_at"]) - datetime.now(UTC)


def test_token_is_shown_once_and_opens_the_file(cluster: Cluster, file_uuid: str) -> None:
    answer = share(cluster, file_uuid)
    assert answer.status == 201
    check_shape(answer.json, PUBLIC_TOKEN)
    assert answer.headers["cache-control"] == "no-store"
    token = answer.json["token"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)
    assert answer.json["url"].endswith(f"/api/v1/public/files/{DEFAULT_BUCKET}/{token}")
    assert (answer.json["file_uuid"], answer.json["bucket_uuid"]) == (file_uuid, DEFAULT_BUCKET)
    assert timedelta(hours=23, minutes=59) < ends_in(answer) <= timedelta(hours=24)
    assert cluster.get(answer.json["url"], token=None).body == b"shared"
    listed = cluster.get(f"/files/{file_uuid}/public-tokens")
    assert token not in listed.body.decode()
    token_id = listed.json["public_tokens"][0]["id"]
    assert answer.headers["location"] == f"/api/v1/files/{file_uuid}/public-tokens/{token_id}"


def test_file_may_lie_in_any_bucket(cluster: Cluster) -> None:
    bucket_id = cluster.post("/buckets", {"name": unique("b")}).json["bucket_id"]
    inside = store(cluster, "/backups", b"inside", bucket_id=bucket_id)
    answer = share(cluster, inside, bucket_uuid=bucket_id.upper(), file_uuid=inside.upper())
    assert (answer.status, answer.json["bucket_uuid"]) == (201, bucket_id)
    assert cluster.get(answer.json["url"], token=None).body == b"inside"


def test_expiry_may_be_chosen_within_thirty_days(cluster: Cluster, file_uuid: str) -> None:
    days = (datetime.now(UTC) + timedelta(days=29)).isoformat()
    assert timedelta(days=28) < ends_in(share(cluster, file_uuid, expires_at=days)) < timedelta(days=29)


def test_life_may_be_given_within_thirty_days(cluster: Cluster, file_uuid: str) -> None:
    made = share(cluster, file_uuid, ttl_seconds=7200)
    listed = cluster.get(f"/files/{file_uuid}/public-tokens").json["public_tokens"][-1]
    life = datetime.fromisoformat(made.json["expires_at"]) - datetime.fromisoformat(listed["created_at"])
    assert life == timedelta(hours=2)
    assert share(cluster, file_uuid, ttl_seconds=30 * 86_400).status == 201
    check_refused(share(cluster, file_uuid, ttl_seconds=30 * 86_400 + 1), "invalid_request", "expires_at")
    both = share(cluster, file_uuid, ttl_seconds=60, expires_at=made.json["expires_at"])
    check_refused(both, "invalid_request", "ttl_seconds")


def test_list_shows_ended_ones_too_without_secrets(cluster: Cluster, file_uuid: str) -> None:
    locations = [share(cluster, file_uuid).headers["location"] for _ in range(3)]
    assert cluster.request("DELETE", locations[1]).status == 200
    answer = cluster.get(f"/files/{file_uuid}/public-tokens")
    assert set(answer.json) == {"count", "public_tokens"}
    assert answer.json["count"] == 3
    listed = answer.json["public_tokens"]
    for entry in listed:
        check_shape(entry, LISTED_PUBLIC_TOKEN)
    assert [location.rsplit("/", 1)[1] for location in locations] == [entry["id"] for entry in listed]
    assert [entry["status"] for entry in listed] == ["active", "revoked", "active"]
    assert {(entry["file_uuid"], entry["bucket_uuid"], entry["created_by"]) for entry in listed} == {
        (file_uuid, DEFAULT_BUCKET, "admin")
    }
    assert pages(cluster, f"/files/{file_uuid}/public-tokens", "public_tokens", limit=1) == listed


def test_revoked_link_is_gone_on_every_node(cluster: Cluster, file_uuid: str) -> None:
    answer = share(cluster, file_uuid)
    token_id = answer.headers["location"].rsplit("/", 1)[1]
    path = answer.json["url"][answer.json["url"].index("/api/") :]
    for _ in range(2):  # again changes nothing
        revoked = cluster.request("DELETE", answer.headers["location"])
        assert (revoked.status, revoked.json) == (200, {"deleted": True, "id": token_id})
    for node in cluster.nodes:
        check_refused(cluster.get(path, node=node, token=None, stranger=True), "gone")


def test_link_ends_with_the_permission_of_who_made_it(cluster: Cluster) -> None:
    owner, sharer = person(cluster), person(cluster)
    mine = store(cluster, "/vms", b"mine", owner.token)
    entry = grant(cluster, f"/files/{mine}", "admin", sharer.id, token=owner.token)
    url = share(cluster, mine, sharer.token).json["url"]
    assert cluster.get(url, token=None).body == b"mine"
    assert cluster.request("DELETE", f"/files/{mine}/permissions/{entry}", token=owner.token).status == 200
    check_refused(cluster.get(url, token=None, stranger=True), "gone")


def test_only_admins_of_the_file_share_list_and_revoke(cluster: Cluster, file_uuid: str) -> None:
    writer = person(cluster)
    grant(cluster, f"/files/{file_uuid}", "write", writer.id)
    made = share(cluster, file_uuid)
    check_refused(share(cluster, file_uuid, writer.token), "forbidden")
    check_refused(cluster.get(f"/files/{file_uuid}/public-tokens", token=writer.token), "forbidden")
    location = made.headers["location"]
    check_refused(cluster.request("DELETE", location, token=writer.token), "forbidden")
    assert cluster.get(made.json["url"], token=None).status == 200


def test_unknown_and_malformed_ids_are_not_found(cluster: Cluster, file_uuid: str) -> None:
    other = share(cluster, create(cluster, "/project-files")["file_uuid"]).headers["location"]
    other_id = other.rsplit("/", 1)[1]
    for token_id in (NOBODY, other_id, "x", "%00"):
        check_refused(cluster.request("DELETE", f"/files/{file_uuid}/public-tokens/{token_id}"), "not_found")
    for nothing in (NOBODY, "x"):
        check_refused(share(cluster, nothing), "not_found")
        check_refused(cluster.get(f"/files/{nothing}/public-tokens"), "not_found")


@pytest.mark.parametrize("kind", KINDS)
def test_file_without_content_may_be_shared_before_it_has_any(cluster: Cluster, kind: str) -> None:
    made = create(cluster, kind)
    url = share(cluster, made["file_uuid"]).json["url"]
    check_refused(cluster.get(url, token=None, stranger=True), "not_available")
    assert cluster.request("PUT", made["upload_url"], content=b"now").status == 200
    assert cluster.get(url, token=None).body == b"now"


def test_own_links_are_listed_with_their_files(cluster: Cluster) -> None:
    alice, bob = person(cluster), person(cluster)
    file_uuid = store(cluster, "/vms", b"x", token=alice.token)
    share(cluster, file_uuid, alice.token)
    (found,) = cluster.get("/public-tokens", token=alice.token).json["public_tokens"]
    check_shape(found, OWN_PUBLIC_TOKEN)
    assert (found["file_uuid"], found["kind"], found["status"]) == (file_uuid, "image", "active")
    assert cluster.get("/public-tokens", token=bob.token).json["public_tokens"] == []
    assert found["id"] in [each["id"] for each in pages(cluster, "/public-tokens", "public_tokens", limit=2)]
