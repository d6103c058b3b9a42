"""The audit log over HTTP: what people did through a member, for admins."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from deploy.processes import wait_until
from tests.api.expectations import NOBODY, TIME, check_refused, check_shape, create, person, store
from tests.cluster.harness import Cluster

FIELDS = ("time", "action", "principal", "target", "outcome", "request_id", "client_address")
ENTRY = dict.fromkeys(FIELDS, str)


def entries(cluster: Cluster, query: str = "", **options: Any) -> list[Any]:
    answer = cluster.get(f"/audit{query}", **options)
    assert answer.status == 200, answer.body
    assert answer.json["count"] == len(answer.json["entries"])
    found: list[Any] = answer.json["entries"]
    return found


def test_what_was_done_to_a_file_is_told_newest_first(cluster: Cluster) -> None:
    owner = person(cluster)
    file_uuid = store(cluster, "/vms", b"x", owner.token)
    other = create(cluster, "/vms", owner.token)["file_uuid"]
    link = cluster.post(f"/files/{file_uuid}/public-token", token=owner.token)
    cluster.remember(link.json["token"])
    cluster.request("PATCH", f"/vms/{file_uuid}", body={"filename": "y"}, token=owner.token)
    denied = cluster.request("DELETE", f"/files/{file_uuid}", token=person(cluster).token)
    assert denied.status == 403
    gone = cluster.request("DELETE", f"/files/{file_uuid}", token=owner.token)
    assert cluster.request("DELETE", f"/files/{other}", token=owner.token).status == 200
    found = entries(cluster, f"?target={file_uuid.upper()}")
    assert [(entry["action"], entry["outcome"]) for entry in found] == [
        ("delete_file", "ok"),
        ("delete_file", "forbidden"),
        ("update_file", "ok"),
        ("create_public_token", "ok"),
    ]
    for entry in found:
        check_shape(entry, ENTRY)
        assert TIME.fullmatch(entry["time"])
        assert file_uuid in entry["target"].split()
        assert link.json["token"] not in str(entry)
    assert found[0]["request_id"] == gone.headers["x-request-id"]
    mine = entries(cluster, f"?target={file_uuid}&principal={owner.id}")
    assert mine == [entry for entry in found if entry["principal"] == owner.id]
    assert entries(cluster, f"?target={file_uuid}&action=update_file") == found[2:3]
    assert entries(cluster, f"?target={NOBODY}") == []


def test_entries_are_narrowed_by_time(cluster: Cluster) -> None:
    user = person(cluster)
    query = f"?principal={user.id}&action=renew_user_token"
    for _ in range(3):
        cluster.remember(cluster.post("/auth/token", token=user.token).json["token"])
    times = [entry["time"] for entry in entries(cluster, query)]
    assert times == sorted(times, reverse=True)
    assert len(times) == 3
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    earlier = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    for since, until, count in (
        (earlier, later, 3),
        (times[2], "", 3),
        ("", times[2], 0),
        (later, "", 0),
        ("", earlier, 0),
    ):
        narrowed = f"{query}&since={quote(since)}&until={quote(until)}"
        assert len(entries(cluster, narrowed)) == count, (since, until)


def test_age_of_entries_is_counted_by_the_clock_of_the_member(cluster: Cluster) -> None:
    user = person(cluster)
    cluster.remember(cluster.post("/auth/token", token=user.token).json["token"])
    query = f"?principal={user.id}&action=renew_user_token&since_seconds="
    assert len(entries(cluster, f"{query}3600")) == 1
    at = datetime.fromisoformat(entries(cluster, f"{query}3600")[0]["time"])
    wait_until(lambda: datetime.now(UTC) - at > timedelta(seconds=1), what="a second", timeout_s=5)
    assert entries(cluster, f"{query}1") == []
    page = cluster.get("/audit?since_seconds=3600&limit=1")
    assert "since_seconds=3600" in page.headers["link"]
    for bad in ("0", "x", "3600&since=2026-01-01T00:00:00Z"):
        check_refused(cluster.get(f"/audit?since_seconds={bad}"), "invalid_request", "since_seconds")


def test_pages_are_linked_and_do_not_repeat(cluster: Cluster) -> None:
    user = person(cluster)
    for _ in range(5):
        cluster.remember(cluster.post("/auth/token", token=user.token).json["token"])
    path = f"/audit?principal={user.id}&limit=2"
    found: list[Any] = []
    for _ in itertools.repeat(None, 100):
        answer = cluster.get(path)
        found += answer.json["entries"]
        assert answer.json["count"] <= 2
        cluster.remember(cluster.post("/auth/token", token=person(cluster).token).json["token"])
        if "next_cursor" not in answer.json:
            break
        path = answer.headers["link"].split(";")[0].strip("<>")
        assert f"cursor={answer.json['next_cursor']}" in path
        assert f"principal={user.id}" in path
    assert "next_cursor" not in answer.json
    ids = [entry["request_id"] for entry in found]
    assert len(ids) == len(set(ids)) == 5
    assert ids == [entry["request_id"] for entry in entries(cluster, f"?principal={user.id}")]


def test_each_member_has_its_own(cluster: Cluster) -> None:
    user = person(cluster)
    for member in cluster.members:
        answer = cluster.post(f"{member.url}/api/v1/auth/token", token=user.token)
        cluster.remember(answer.json["token"])
    for member in cluster.members:
        found = entries(cluster, f"?principal={user.id}", node=member)
        assert [entry["action"] for entry in found] == ["renew_user_token"]


def test_failed_attempts_are_apart_and_listed_with_the_rest(cluster: Cluster) -> None:
    node, user = cluster.nodes[0], person(cluster)
    cluster.remember(cluster.post("/auth/token", token=user.token, node=node).json["token"])
    refused = cluster.get(f"{node.url}/api/v1/buckets", token="FST-guess", stranger=True)
    check_refused(refused, "unauthorized")
    cluster.remember(cluster.post("/auth/token", token=user.token, node=node).json["token"])
    request_id = refused.headers["x-request-id"]
    (failed,) = [each for each in entries(cluster, node=node) if each["request_id"] == request_id]
    assert (failed["action"], failed["principal"], failed["outcome"]) == ("authenticate", "-", "unauthorized")
    listed = [each["action"] for each in entries(cluster, node=node)[:3]]
    assert listed == ["renew_user_token", "authenticate", "renew_user_token"]
    assert request_id not in (cluster.data(node) / "audit.log").read_text()
    assert request_id in (cluster.data(node) / "failed_attempts.log").read_text()


def test_it_is_for_admins(cluster: Cluster) -> None:
    user = person(cluster)
    for member in cluster.members:
        url = f"{member.url}/api/v1/audit"
        check_refused(cluster.get(url, token=user.token), "forbidden")
        check_refused(cluster.get(url, token=None, stranger=True), "unauthorized")


@pytest.mark.parametrize("query", ["?principal=%00", "?target=%0A", "?action=%F0%9F%98%80", "?cursor=1-1-0"])
def test_what_nothing_has_finds_nothing(cluster: Cluster, query: str) -> None:
    assert entries(cluster, query) == []


def test_empty_parameters_count_as_left_out(cluster: Cluster) -> None:
    everything = entries(cluster, "?limit=1&principal=&target=&action=&since=&until=&cursor=")
    assert len(everything) == 1
