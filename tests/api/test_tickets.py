"""Tickets over HTTP: an address of one file for minutes, without a header, for who may read it."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.expectations import (
    KINDS,
    NOBODY,
    check_refused,
    check_shape,
    create,
    grant,
    person,
    store,
)
from tests.cluster.harness import Answer, Cluster

CONTENT = b"0123456789" * 1000


def ticket(cluster: Cluster, file_uuid: str, token: str = "", **fields: Any) -> Answer:
    answer = cluster.post(f"/files/{file_uuid}/ticket", fields or None, token=token)
    if answer.status == 200:
        cluster.remember(answer.json["url"].rpartition("/")[2])
    return answer


def path_of(cluster: Cluster, file_uuid: str, token: str = "") -> str:
    return urlsplit(str(ticket(cluster, file_uuid, token).json["url"])).path


def opened(cluster: Cluster, path: str, **options: Any) -> Answer:
    return cluster.get(path, token=None, stranger=True, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_address_opens_the_file_at_every_node(cluster: Cluster, kind: str) -> None:
    file_uuid = store(cluster, kind, CONTENT)
    answer = ticket(cluster, file_uuid)
    assert answer.status == 200
    check_shape(answer.json, {"url": str, "expires_at": str})
    assert answer.headers["cache-control"] == "no-store"
    ends_in = datetime.fromisoformat(answer.json["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=4) < ends_in <= timedelta(minutes=5)
    assert cluster.get(answer.json["url"], token=None).body == CONTENT
    path = urlsplit(answer.json["url"]).path
    for node in cluster.nodes:
        opened_one = opened(cluster, path, node=node)
        assert (opened_one.status, opened_one.body) == (200, CONTENT)
        assert opened_one.headers["referrer-policy"] == "no-referrer"
        assert opened_one.headers["cache-control"] == "private, no-store"
        assert opened_one.headers["content-disposition"].startswith("attachment")


def test_ranges_and_conditions_are_those_of_downloads(cluster: Cluster) -> None:
    path = path_of(cluster, store(cluster, "/vms", CONTENT))
    known = cluster.request("HEAD", path, token=None)
    assert (known.status, known.body) == (200, b"")
    assert known.headers["content-length"] == str(len(CONTENT))
    part = opened(cluster, path, headers={"Range": "bytes=10-19"})
    assert (part.status, part.body) == (206, CONTENT[10:20])
    several = opened(cluster, path, headers={"Range": "bytes=0-1,-2"})
    assert several.headers["content-type"].startswith("multipart/byteranges")
    assert opened(cluster, path, headers={"If-None-Match": known.headers["etag"]}).status == 304
    assert opened(cluster, path, headers={"If-Match": '"x"'}).status == 412
    assert opened(cluster, path, headers={"Range": "bytes=99999-"}).status == 416
    for bad in ("If-Match", "Range"):
        refused = opened(cluster, path, headers={bad: '"x"' if bad == "If-Match" else "bytes=99999-"})
        assert refused.headers["referrer-policy"] == "no-referrer"


def test_redirect_leads_to_nodes_of_the_cluster_alone(cluster: Cluster) -> None:
    path = path_of(cluster, store(cluster, "/vms", CONTENT))
    for node in cluster.nodes:
        answer = opened(cluster, f"{path}?redirect=1", node=node)
        assert answer.status in (200, 307)
        if answer.status == 307:
            assert answer.headers["location"] in [f"{each.url}{path}" for each in cluster.nodes]
            assert answer.headers["referrer-policy"] == "no-referrer"


def test_ticket_stands_for_its_user_and_file_alone(cluster: Cluster) -> None:
    owner = person(cluster)
    file_uuid = store(cluster, "/vms", CONTENT, owner.token)
    secret = path_of(cluster, file_uuid, owner.token).rpartition("/")[2]
    for path in ("/auth/whoami", f"/files/{file_uuid}", f"/vms/{file_uuid}", "/vms"):
        check_refused(cluster.get(path, token=secret, stranger=True), "unauthorized")
    for method, path in (
        ("DELETE", f"/files/{file_uuid}"),
        ("PATCH", f"/vms/{file_uuid}"),
        ("POST", f"/files/{file_uuid}/ticket"),
        ("POST", "/auth/token"),
    ):
        check_refused(cluster.request(method, path, token=secret, stranger=True), "unauthorized")
    for method in ("PUT", "POST", "PATCH", "DELETE"):
        answer = cluster.request(method, f"/tickets/{secret}", token=owner.token)
        check_refused(answer, "method_not_allowed")
    check_refused(opened(cluster, f"/public/files/{NOBODY}/{secret}"), "not_found")


def test_user_token_is_no_ticket(cluster: Cluster) -> None:
    owner = person(cluster)
    store(cluster, "/vms", CONTENT, owner.token)
    for secret in (owner.token, cluster.admin_token):
        answer = opened(cluster, f"/tickets/{secret}")
        check_refused(answer, "not_found")
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_altered_and_malformed_tickets_lead_nowhere(cluster: Cluster) -> None:
    secret = path_of(cluster, store(cluster, "/vms", CONTENT)).rpartition("/")[2]
    head, claims, signature = secret.split(".")
    flipped = "B" if signature[5] == "A" else "A"
    for bad in (
        secret[:-1],
        secret + "A",
        f"{head}.{claims}.",
        f"{head}.{claims}.{signature[:5]}{flipped}{signature[6:]}",
        secret.swapcase(),
        "x",
        "%00",
        "a.b.c",
    ):
        check_refused(opened(cluster, f"/tickets/{bad}"), "not_found")


@pytest.mark.parametrize(
    "end",
    ["revoke", "disable", "withdraw", "delete the user"],
)
def test_ticket_ends_with_what_its_user_may(cluster: Cluster, end: str) -> None:
    reader = person(cluster)
    file_uuid = store(cluster, "/vms", CONTENT)
    entry = grant(cluster, f"/files/{file_uuid}", "read", reader.id)
    path = path_of(cluster, file_uuid, reader.token)
    for node in cluster.nodes:
        assert opened(cluster, path, node=node).status == 200
    told = {
        "revoke": lambda: cluster.post("/auth/revoke", {"user_id": reader.id}),
        "disable": lambda: cluster.request("PUT", f"/auth/users/{reader.id}", body={"disabled": True}),
        "withdraw": lambda: cluster.request("DELETE", f"/files/{file_uuid}/permissions/{entry}"),
        "delete the user": lambda: cluster.request("DELETE", f"/auth/users/{reader.id}"),
    }[end]()
    assert told.status == 200
    for node in cluster.nodes:
        answer = opened(cluster, path, node=node)
        check_refused(answer, "gone")
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_ticket_of_a_deleted_file_leads_nowhere(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/vms", CONTENT)
    path = path_of(cluster, file_uuid)
    assert cluster.request("DELETE", f"/files/{file_uuid}").status == 200
    check_refused(opened(cluster, path), "not_found")


def test_ticket_needs_read_and_content(cluster: Cluster) -> None:
    owner, stranger = person(cluster), person(cluster)
    file_uuid = store(cluster, "/vms", CONTENT, owner.token)
    check_refused(ticket(cluster, file_uuid, stranger.token), "forbidden")
    grant(cluster, f"/files/{file_uuid}", "read", stranger.id, token=owner.token)
    assert ticket(cluster, file_uuid, stranger.token).status == 200
    pending = create(cluster, "/vms", owner.token)["file_uuid"]
    check_refused(ticket(cluster, pending, owner.token), "not_available")
    for nothing in (NOBODY, "x"):
        check_refused(ticket(cluster, nothing), "not_found")


def test_life_of_a_ticket_may_be_chosen(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/vms", CONTENT)
    for ttl_seconds in (60, 3600):
        made = ticket(cluster, file_uuid, ttl_seconds=ttl_seconds).json
        ends_in = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
        assert ends_in.total_seconds() == pytest.approx(ttl_seconds, abs=20)


def test_coordinators_make_tickets_for_nodes(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/vms", CONTENT)
    for coordinator in cluster.coordinators:
        made = cluster.post(f"{coordinator.url}/api/v1/files/{file_uuid}/ticket").json
        cluster.remember(made["url"].rpartition("/")[2])
        assert cluster.get(made["url"], token=None).body == CONTENT


def test_ticket_is_in_no_log_or_metric(cluster: Cluster) -> None:
    """Nor in the audit log, which tells that it was made, and when somebody tried one in vain."""
    owner = person(cluster)
    file_uuid = store(cluster, "/vms", CONTENT, owner.token)
    path = path_of(cluster, file_uuid, owner.token)
    secret = path.rpartition("/")[2]
    for node in cluster.nodes:
        assert opened(cluster, path, node=node).status == 200
        assert opened(cluster, f"{path}?redirect=1", node=node).status in (200, 307)
    assert cluster.post("/auth/revoke", {"user_id": owner.id}).status == 200
    check_refused(opened(cluster, path), "gone")
    found = cluster.get(f"/audit?target={file_uuid}&action=create_ticket").json["entries"]
    assert [(entry["principal"], entry["outcome"]) for entry in found] == [(owner.id, "ok")]
    tried = cluster.get("/audit?action=ticket&limit=1").json["entries"]
    assert (tried[0]["target"], tried[0]["outcome"]) == ("GET /api/v1/tickets", "gone")
    for part in secret.split("."):
        for name, text in cluster.logs().items():
            assert part not in text, name
    for node in cluster.nodes:
        metrics = cluster.get("/metrics", node=node, token=None).body.decode()
        assert "/api/v1/tickets/{ticket}" in metrics
        assert not any(part in metrics for part in secret.split("."))
