"""What is taken away is gone on every node with the next request, and for what is under way too."""

import http.client
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest

from deploy.dev_cluster import Member
from tests.api.expectations import Person, check_refused, create, grant, person, store, unique
from tests.cluster.harness import Answer, Cluster

PART = b"x" * 1000
OTHER = b"y" * len(PART)
ROUNDS = 3  # each node takes its turn as the one that is told


def turns(cluster: Cluster) -> Iterator[tuple[Member, list[Member]]]:
    """Each node in turn, with the others."""
    for told in cluster.nodes[:ROUNDS]:
        yield told, [node for node in cluster.nodes if node is not told]


def asked(cluster: Cluster, path: str, user: Person, nodes: list[Member]) -> list[int]:
    return [cluster.get(path, token=user.token, node=node, stranger=True).status for node in nodes]


def test_revoked_token_is_dead_on_every_other_node_at_once(cluster: Cluster) -> None:
    for told, others in turns(cluster):
        user = person(cluster)
        assert asked(cluster, "/auth/whoami", user, others) == [200, 200]
        assert cluster.post("/auth/revoke", {"user_id": user.id}, node=told).status == 200
        for path in ("/auth/whoami", "/project-files", "/buckets"):
            assert asked(cluster, path, user, others) == [401, 401]


def test_disabled_and_deleted_users_are_refused_on_every_other_node_at_once(cluster: Cluster) -> None:
    for told, others in turns(cluster):
        disabled, deleted = person(cluster), person(cluster)
        path = f"/auth/users/{disabled.id}"
        assert cluster.request("PUT", path, body={"disabled": True}, node=told).status == 200
        assert asked(cluster, "/auth/whoami", disabled, others) == [401, 401]
        assert cluster.request("DELETE", f"/auth/users/{deleted.id}", node=told).status == 200
        assert asked(cluster, "/auth/whoami", deleted, others) == [401, 401]


@pytest.mark.parametrize("kind", ["user", "group", "role"])
@pytest.mark.parametrize("place", ["file", "bucket"])
def test_withdrawn_permission_is_gone_on_every_other_node_at_once(
    cluster: Cluster, kind: str, place: str
) -> None:
    name = unique("name")
    user = person(cluster, groups=[name], roles=[name])
    bucket = cluster.post("/buckets", {"name": unique("b")}).json["bucket_id"]
    file_uuid = store(cluster, "/vms", b"x", bucket_id=bucket)
    target = f"/files/{file_uuid}" if place == "file" else f"/buckets/{bucket}"
    for told, others in turns(cluster):
        entry = grant(cluster, target, "admin", user.id if kind == "user" else name, kind=kind)
        for path in (f"/vms/{file_uuid}", f"/files/{file_uuid}", f"/files/{file_uuid}/permissions"):
            assert asked(cluster, path, user, others) == [200, 200]
        assert cluster.request("DELETE", f"{target}/permissions/{entry}", node=told).status == 200
        for path in (f"/vms/{file_uuid}", f"/files/{file_uuid}", f"/files/{file_uuid}/permissions"):
            assert asked(cluster, path, user, others) == [403, 403]


def test_group_or_role_that_a_user_loses_gives_nothing_any_more(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/vms", b"x")
    for field, (told, others) in zip(("groups", "roles"), turns(cluster), strict=False):
        name = unique("name")
        user = person(cluster, "person", **{field: [name]})
        grant(cluster, f"/files/{file_uuid}", "read", name, kind=field[:-1])
        assert asked(cluster, f"/files/{file_uuid}", user, others) == [200, 200]
        cluster.request("PUT", f"/auth/users/{user.id}", body={field: []}, node=told)
        assert asked(cluster, f"/files/{file_uuid}", user, others) == [403, 403]


def test_role_admin_that_a_user_loses_gives_nothing_any_more(cluster: Cluster) -> None:
    file_uuid = store(cluster, "/vms", b"x")
    for told, others in turns(cluster):
        chief = person(cluster, roles=["admin"])
        assert asked(cluster, f"/vms/{file_uuid}", chief, others) == [200, 200]
        cluster.request("PUT", f"/auth/users/{chief.id}", body={"roles": []}, node=told)
        for path in (f"/vms/{file_uuid}", "/cluster/nodes", "/auth/users", "/jobs"):
            assert asked(cluster, path, chief, others) == [403, 403]


class Upload:
    """An upload of two parts by a user who may write to the admin's file."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.user = cluster, person(cluster)
        made = create(cluster, "/project-files", size_bytes=2 * len(PART))
        self.file_uuid, self.url = made["file_uuid"], made["upload_url"]
        self.entry = grant(cluster, f"/files/{self.file_uuid}", "write", self.user.id)

    def withdraw(self) -> None:
        path = f"/files/{self.file_uuid}/permissions/{self.entry}"
        assert self.cluster.request("DELETE", path).status == 200

    def revoke(self) -> None:
        assert self.cluster.post("/auth/revoke", {"user_id": self.user.id}).status == 200

    def put(self, part: int, node: Member | None = None) -> Answer:
        """One part, through the node that holds the upload or another one."""
        start = part * len(PART)
        span = {"Content-Range": f"bytes {start}-{start + len(PART) - 1}/{2 * len(PART)}"}
        url = self.url if node is None else f"/files/{self.file_uuid}/content"
        return self.cluster.request(
            "PUT", url, content=PART, headers=span, token=self.user.token, node=node, stranger=True
        )

    def put_whole(self, between: Callable[[], None]) -> Answer:
        """Both parts in one request; `between` is called when the first is on its way."""

        def pieces() -> Iterator[bytes]:
            yield PART
            between()
            yield PART

        return self._send(pieces(), {"Content-Length": str(2 * len(PART))})

    def put_other(self, take: Callable[["Upload"], None], *, is_cut: bool = False) -> Answer | None:
        """Another second part. The permission goes after its first byte; `is_cut`: the end never comes."""

        def pieces() -> Iterator[bytes]:
            yield OTHER[:1]
            take(self)
            yield OTHER[1 : len(OTHER) // 2]
            if is_cut:
                raise ConnectionError("the client has gone")
            yield OTHER[len(OTHER) // 2 :]

        span = f"bytes {len(PART)}-{2 * len(PART) - 1}/{2 * len(PART)}"
        with suppress(ConnectionError):
            return self._send(pieces(), {"Content-Length": str(len(PART)), "Content-Range": span})
        return None

    def _send(self, pieces: Iterator[bytes], headers: dict[str, str]) -> Answer:
        parts = urlsplit(self.url)
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=30, context=self.cluster.context
        )
        headers["Authorization"] = f"Bearer {self.user.token}"
        try:
            connection.request("PUT", parts.path, body=pieces, headers=headers)
            response = connection.getresponse()
            return Answer(response.status, {}, response.read())
        finally:
            connection.close()

    def put_by_owner(self, content: bytes, start: int) -> Answer:
        """A piece of the admin's, whose file it is."""
        span = {"Content-Range": f"bytes {start}-{start + len(content) - 1}/{2 * len(PART)}"}
        return self.cluster.request("PUT", self.url, content=content, headers=span)

    def check_nothing_kept(self) -> None:
        """Nothing that came after the permission went may become content, even if its owner asks for it."""
        assert self.cluster.get(f"/files/{self.file_uuid}/status").json == {"offset": 0}
        nothing_more = {"Content-Range": f"bytes */{2 * len(PART)}"}
        answer = self.cluster.request("PUT", self.url, content=b"", headers=nothing_more)
        assert (answer.status, answer.json) == (202, {"offset": 0})

    def check_not_available(self) -> None:
        record = self.cluster.get(f"/project-files/{self.file_uuid}").json
        assert (record["status"], record["blob_sha256"]) in (("pending", ""), ("uploading", ""))
        check_refused(self.cluster.get(f"/files/{self.file_uuid}"), "not_available")


def test_upload_that_keeps_its_permission_completes(cluster: Cluster) -> None:
    upload = Upload(cluster)
    assert upload.put_whole(lambda: None).status == 200
    assert cluster.get(f"/files/{upload.file_uuid}").body == PART + PART


@pytest.mark.parametrize(("take", "code"), [(Upload.withdraw, "forbidden"), (Upload.revoke, "unauthorized")])
def test_upload_is_refused_when_its_permission_goes_between_two_requests(
    cluster: Cluster, take: Callable[[Upload], None], code: str
) -> None:
    nodes: list[Member | None] = [None, *cluster.nodes]
    for node in nodes:
        upload = Upload(cluster)
        assert upload.put(0).status == 202
        take(upload)
        check_refused(upload.put(1, node), code)
        upload.check_not_available()


@pytest.mark.parametrize(("take", "code"), [(Upload.withdraw, "forbidden"), (Upload.revoke, "unauthorized")])
def test_upload_is_refused_when_its_permission_goes_while_the_bytes_come(
    cluster: Cluster, take: Callable[[Upload], None], code: str
) -> None:
    upload = Upload(cluster)
    check_refused(upload.put_whole(lambda: take(upload)), code)
    upload.check_nothing_kept()
    upload.check_not_available()


@pytest.mark.parametrize(("take", "code"), [(Upload.withdraw, "forbidden"), (Upload.revoke, "unauthorized")])
def test_bytes_that_came_without_permission_do_not_stand_in_the_place_of_others(
    cluster: Cluster, take: Callable[[Upload], None], code: str
) -> None:
    upload = Upload(cluster)
    assert upload.put_by_owner(PART, 0).status == 202
    refused = upload.put_other(take)
    assert refused is not None
    check_refused(refused, code)
    assert upload.put_by_owner(PART, len(PART)).status == 200
    assert cluster.get(f"/files/{upload.file_uuid}").body == PART + PART


@pytest.mark.parametrize("take", [Upload.withdraw, Upload.revoke])
def test_bytes_that_came_without_permission_are_not_acknowledged_to_others(
    cluster: Cluster, take: Callable[[Upload], None]
) -> None:
    upload = Upload(cluster)
    assert upload.put_by_owner(PART, 0).status == 202
    assert upload.put_other(take, is_cut=True) is None
    answer = upload.put_by_owner(PART[1:], len(PART) + 1)
    assert (answer.status, answer.headers["upload-offset"]) == (409, str(len(PART)))


def test_permission_that_comes_back_lets_the_upload_complete(cluster: Cluster) -> None:
    upload = Upload(cluster)
    assert upload.put(0).status == 202
    upload.withdraw()
    check_refused(upload.put(1), "forbidden")
    grant(cluster, f"/files/{upload.file_uuid}", "write", upload.user.id)
    assert upload.put(1).status == 200
    assert cluster.get(f"/files/{upload.file_uuid}").body == PART + PART
