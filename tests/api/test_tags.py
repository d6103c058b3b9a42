"""Entity tags of records over HTTP, and conditions on reading, changing and deleting them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.expectations import KINDS, check_refused, create, grant, person, store, unique
from tests.cluster.harness import Answer, Cluster

CHANGES: dict[str, dict[str, Any]] = {
    "/project-files": {"version_tag": "v2"},
    "/vms": {"vcpus": 7},
    "/backups": {"source_node_id": "n7"},
    "/buckets": {"quota_bytes": 1 << 40},
}
OLD = "Mon, 01 Jan 2024 00:00:00 GMT"
OTHER = '"other"'

every_resource = pytest.mark.parametrize("resource", CHANGES)


def new(cluster: Cluster, resource: str, token: str = "") -> str:
    """The path of a record of this kind."""
    if resource == "/buckets":
        answer = cluster.post(resource, {"name": unique("b")}, token=token)
        assert answer.status == 201
        return f"/buckets/{answer.json['bucket_id']}"
    return f"{resource}/{create(cluster, resource, token)['file_uuid']}"


def change(cluster: Cluster, path: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return cluster.request("PATCH", path, body=CHANGES[f"/{path.split('/')[1]}"], headers=named)


@every_resource
def test_record_has_a_tag_that_changes_with_it(cluster: Cluster, resource: str) -> None:
    path = new(cluster, resource)
    tags = {cluster.get(path, node=node).headers["etag"] for node in cluster.nodes}
    assert len(tags) == 1
    changed = change(cluster, path)
    now = cluster.get(path)
    assert changed.headers["etag"] == now.headers["etag"] not in tags
    assert now.headers["etag"].startswith('"')
    assert now.headers["cache-control"] == "private, no-cache"
    undone: dict[str, Any] = {"/vms": {"vcpus": 1}, "/buckets": {"quota_bytes": 0}}.get(resource, {})
    if undone:  # nor does an earlier state come again
        assert cluster.request("PATCH", path, body=undone).headers["etag"] not in tags
    assert cluster.request("HEAD", path).headers["etag"] == cluster.get(path).headers["etag"]


def test_new_bucket_comes_with_its_tag(cluster: Cluster) -> None:
    answer = cluster.post("/buckets", {"name": unique("b")})
    assert answer.headers["etag"] == cluster.get(f"/buckets/{answer.json['bucket_id']}").headers["etag"]


@pytest.mark.parametrize("kind", KINDS)
def test_tag_of_a_record_is_not_that_of_its_content(cluster: Cluster, kind: str) -> None:
    file_uuid = store(cluster, kind, b"content")
    of_content = cluster.get(f"/files/{file_uuid}").headers["etag"]
    assert cluster.get(f"{kind}/{file_uuid}").headers["etag"] != of_content
    check_refused(change(cluster, f"{kind}/{file_uuid}", If_Match=of_content), "precondition_failed")


@pytest.mark.parametrize("kind", KINDS)
def test_completion_makes_another_state(cluster: Cluster, kind: str) -> None:
    made = create(cluster, kind)
    path = f"{kind}/{made['file_uuid']}"
    before = cluster.get(path).headers["etag"]
    assert cluster.request("PUT", made["upload_url"], content=b"content").status == 200
    check_refused(change(cluster, path, If_Match=before), "precondition_failed", "If-Match")


def test_files_that_come_make_another_state_of_their_bucket(cluster: Cluster) -> None:
    path = new(cluster, "/buckets")
    tags = [cluster.get(path).headers["etag"]]
    made = create(cluster, "/vms", bucket_id=path.rpartition("/")[2])
    tags.append(cluster.get(path).headers["etag"])
    assert cluster.request("PUT", made["upload_url"], content=b"content").status == 200
    tags.append(cluster.get(path).headers["etag"])
    assert cluster.request("DELETE", f"/files/{made['file_uuid']}").status == 200
    tags.append(cluster.get(path).headers["etag"])
    assert len(set(tags)) == 4
    for tag in tags[:-1]:
        check_refused(change(cluster, path, If_Match=tag), "precondition_failed")
    assert change(cluster, path, If_Match=tags[-1]).status == 200


@every_resource
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_conditions_on_reading(cluster: Cluster, resource: str, method: str) -> None:
    path = new(cluster, resource)
    known = cluster.get(path).headers

    def ask(**headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cluster.request(method, path, headers=named)

    for same in (known["etag"], "*", f"{OTHER}, {known['etag']}", f"W/{known['etag']}"):
        answer = ask(If_None_Match=same)
        assert (answer.status, answer.body) == (304, b"")
        assert answer.headers["etag"] == known["etag"]
    assert ask(If_None_Match=OTHER).status == 200
    for holds in (known["etag"], "*", f"{OTHER}, {known['etag']}"):
        assert ask(If_Match=holds).status == 200
    for fails in (OTHER, f"W/{known['etag']}"):
        assert ask(If_Match=fails).status == 412
    assert ask(If_Unmodified_Since=OLD).status == 412
    assert ask(If_Unmodified_Since=known["last-modified"]).status == 200
    assert ask(If_Modified_Since=known["last-modified"]).status == 200  # a second is too long to tell


def states(cluster: Cluster, path: str) -> dict[str, dict[str, str]]:
    """Conditions that do not hold, each by its name."""
    tag = cluster.get(path).headers["etag"]
    return {
        "If-Match": {"If-Match": f"{OTHER}, W/{tag}"},
        "If-None-Match": {"If-None-Match": tag},
        "If-Unmodified-Since": {"If-Unmodified-Since": OLD},
    }


@every_resource
def test_conditions_on_changing(cluster: Cluster, resource: str) -> None:
    path = new(cluster, resource)
    before = cluster.get(path)
    for name, fails in [*states(cluster, path).items(), ("If-None-Match", {"If-None-Match": "*"})]:
        refused = cluster.request("PATCH", path, body=CHANGES[resource], headers=fails)
        check_refused(refused, "precondition_failed", name)
    assert cluster.get(path).json == before.json
    first = change(cluster, path, If_Match=before.headers["etag"], If_Unmodified_Since=OLD)
    assert first.status == 200  # the date does not count beside a tag
    check_refused(change(cluster, path, If_Match=before.headers["etag"]), "precondition_failed", "If-Match")
    date = first.headers["last-modified"]
    for holds in ({"If-Match": "*"}, {"If-None-Match": OTHER}, {"If-Unmodified-Since": date}):
        assert cluster.request("PATCH", path, body={}, headers=holds).status == 200


@every_resource
def test_conditions_on_deleting(cluster: Cluster, resource: str) -> None:
    path = new(cluster, resource)
    for name, fails in states(cluster, path).items():
        check_refused(cluster.request("DELETE", path, headers=fails), "precondition_failed", name)
    seen = {"If-Match": cluster.get(path).headers["etag"]}
    assert change(cluster, path).status == 200
    check_refused(cluster.request("DELETE", path, headers=seen), "precondition_failed", "If-Match")
    now = {"If-Match": cluster.get(path).headers["etag"]}
    assert cluster.request("DELETE", path, headers=now).status == 200
    check_refused(cluster.request("DELETE", path, headers=now), "not_found")


def test_file_of_any_kind_is_deleted_by_what_its_content_is(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/vms", b"content")
    for fails in ({"If-None-Match": "*"}, {"If-Match": OTHER}):
        refused = cluster.request("DELETE", f"/files/{file_uuid}", headers=fails)
        check_refused(refused, "precondition_failed", next(iter(fails)))
    empty = create(cluster, "/vms")["file_uuid"]
    assert cluster.request("DELETE", f"/files/{empty}", headers={"If-None-Match": "*"}).status == 200


@every_resource
def test_of_changes_at_once_under_one_tag_one_wins(cluster: Cluster, resource: str) -> None:
    path = new(cluster, resource)
    tag = cluster.get(path).headers["etag"]

    def asking(number: int) -> Callable[[], Answer]:
        headers, node = {"If-Match": tag}, cluster.nodes[number % len(cluster.nodes)]
        return lambda: cluster.request("PATCH", path, body=CHANGES[resource], headers=headers, node=node)

    with ThreadPoolExecutor(9) as clients:
        answers = [running.result() for running in [clients.submit(asking(number)) for number in range(9)]]
    assert sorted(answer.status for answer in answers) == [200] + [412] * 8


def test_who_may_not_read_learns_nothing_of_the_state(cluster: Cluster) -> None:
    owner, reader, other = person(cluster), person(cluster), person(cluster)
    path = new(cluster, "/vms", owner.token)
    grant(cluster, f"/files/{path.rpartition('/')[2]}", "read", reader.id, token=owner.token)
    tag = cluster.get(path).headers["etag"]
    for token in (other.token, reader.token):
        for method, body in (("PATCH", {"vcpus": 2}), ("DELETE", None)):
            answer = cluster.request(method, path, body=body, headers={"If-Match": tag}, token=token)
            check_refused(answer, "forbidden")
    answer = cluster.request("PATCH", path, body={}, headers={"If-Match": OTHER}, token=other.token)
    check_refused(answer, "forbidden")
