"""Folders of a bucket over HTTP: set at creation and by a change, and listed."""

from urllib.parse import quote

import pytest

from tests.api.expectations import DEFAULT_BUCKET, KINDS, check_refused, create, grant, person, unique
from tests.api.test_tus_creation import CONTENT, TUS, metadata, send
from tests.cluster.harness import Cluster

every_kind = pytest.mark.parametrize("kind", KINDS)


def in_folder(cluster: Cluster, path: str, *, token: str = "", more: str = "") -> list[str]:
    where = f"/buckets/{DEFAULT_BUCKET}/files?path={quote(path, safe='')}{more}"
    return [file["file_uuid"] for file in cluster.get(where, token=token).json["files"]]


def folders(cluster: Cluster, path: str, token: str = "") -> list[tuple[str, str]]:
    """Name and path of each, page after page of two."""
    found: list[tuple[str, str]] = []
    where = f"/buckets/{DEFAULT_BUCKET}/folders?limit=2&path={quote(path, safe='')}"
    while where:
        answer = cluster.get(where, token=token)
        assert answer.json["count"] == len(answer.json["folders"]) <= 2
        found += [(each["name"], each["path"]) for each in answer.json["folders"]]
        link = answer.headers.get("link", "")
        assert bool(link) == ("next_cursor" in answer.json)
        where = link.partition("<")[2].partition(">")[0].removeprefix("/api/v1")
    return found


@every_kind
def test_file_is_in_its_folder(cluster: Cluster, kind: str) -> None:
    top = unique("lab ä%&#")
    made = create(cluster, kind, path=f"/{top}/r1/")
    path = f"{kind}/{made['file_uuid']}"
    record = cluster.get(path).json
    assert record["path"] == f"{top}/r1"
    for folder in ("r2", "r3"):
        create(cluster, kind, path=f"{top}/{folder}")
    assert folders(cluster, top) == [(name, f"{top}/{name}") for name in ("r1", "r2", "r3")]
    assert (top, top) in folders(cluster, "/")
    assert in_folder(cluster, f"{top}/r1") == [made["file_uuid"]]
    assert in_folder(cluster, top) == []
    assert len(in_folder(cluster, top, more="&recursive=1")) == 3
    assert made["file_uuid"] not in in_folder(cluster, "/")
    name = quote(record["filename"])
    assert in_folder(cluster, f"{top}/r1", more=f"&name={name}") == [made["file_uuid"]]
    assert in_folder(cluster, f"{top}/r1", more=f"&name={name[:-1]}") == []
    anywhere = cluster.get(f"/buckets/{DEFAULT_BUCKET}/files?name={name}&limit=1000").json["files"]
    assert made["file_uuid"] in [file["file_uuid"] for file in anywhere]
    moved = cluster.request("PATCH", path, body={"path": "/", "filename": top}).json
    assert (moved["path"], moved["filename"]) == ("", top)
    assert in_folder(cluster, f"{top}/r1") == []
    assert in_folder(cluster, "/", more=f"&filename={quote(top)}") == [made["file_uuid"]]
    assert cluster.request("PATCH", path, body={"path": top}).json["path"] == top
    unchanged = cluster.request("PATCH", path, body={"filename": "b"}).json
    assert (unchanged["path"], unchanged["filename"]) == (top, "b")


def test_pages_of_a_folder_go_on_in_it(cluster: Cluster) -> None:
    top = unique("lab")
    made = [create(cluster, "/vms", path=top)["file_uuid"] for _ in range(3)]
    first = cluster.get(f"/buckets/{DEFAULT_BUCKET}/files?path={top}&limit=2")
    assert [file["path"] for file in first.json["files"]] == [top, top]
    link = first.headers["link"].partition("<")[2].partition(">")[0]
    rest = cluster.get(link.removeprefix("/api/v1")).json["files"]
    assert [file["file_uuid"] for file in (*first.json["files"], *rest)] == made


@every_kind
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"path": "lab/r1"}, "lab/r1"),
        ({"relativePath": "lab/r1/startup-config.cfg"}, "lab/r1"),
        ({"relativePath": "/lab/x.cfg"}, "lab"),
        ({"relativePath": "x.cfg"}, ""),
        ({"relativePath": "null"}, ""),
        ({"relativePath": "lab/x.cfg", "path": "own"}, "own"),
    ],
)
def test_tus_says_the_folder(cluster: Cluster, kind: str, fields: dict[str, str], path: str) -> None:
    said = metadata(KINDS[kind] | {"filename": "x.cfg"} | fields)
    answer = cluster.post(kind, headers=TUS | {"Upload-Length": str(len(CONTENT))} | said)
    assert send(cluster, answer.headers["location"]).status == 204
    assert cluster.get(f"{kind}/{answer.json['file_uuid']}").json["path"] == path


def test_folders_show_what_the_caller_may_see(cluster: Cluster) -> None:
    someone = person(cluster)
    token = someone.token
    top = unique("lab")
    secret = create(cluster, "/vms", path=f"{top}/secret")["file_uuid"]
    shared = create(cluster, "/vms", path=f"{top}/shared")["file_uuid"]
    assert folders(cluster, top, token) == []
    grant(cluster, f"/files/{shared}", "read", someone.id)
    assert folders(cluster, top, token) == [("shared", f"{top}/shared")]
    assert in_folder(cluster, f"{top}/shared", token=token) == [shared]
    assert in_folder(cluster, f"{top}/secret", token=token) == []
    check_refused(cluster.request("PATCH", f"/vms/{secret}", body={"path": "mine"}, token=token), "forbidden")
    other = cluster.post("/buckets", {"name": unique("b")}).json["bucket_id"]
    check_refused(cluster.get(f"/buckets/{other}/folders", token=token), "forbidden")
