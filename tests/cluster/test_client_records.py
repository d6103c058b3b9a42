"""The Python client: buckets, permissions, links, users, tokens, jobs, nodes, and the records of files."""

import hashlib
import http.client
import json
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

import pytest

from filestore_client import AsyncClient, Client
from filestore_client.base.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unauthorized,
)
from filestore_client.base.records import Backup, Image, Project
from metadata.model.jobs import JOBS
from tests.cluster.connections import async_client_of, client_of
from tests.cluster.harness import Cluster

LISTED = 5


@pytest.fixture
async def async_client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with async_client_of(cluster) as made:
        yield made


def unique(prefix: str = "c") -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


def test_bucket_is_made_found_changed_and_deleted(client: Client) -> None:
    name = unique()
    made = client.buckets.create(name, quota_bytes=1 << 20)
    assert (made.name, made.quota_bytes, made.used_bytes, made.file_count) == (name, 1 << 20, 0, 0)
    found = client.buckets.find(name)
    assert found is not None
    assert found.bucket_id == made.bucket_id
    assert made.bucket_id in {bucket.bucket_id for bucket in client.buckets.list()}
    with pytest.raises(Conflict):
        client.buckets.create(name)
    before = client.buckets.get(made.bucket_id)
    changed = client.buckets.update(made.bucket_id, name=unique(), quota_bytes=0, if_match=before.etag)
    assert changed.quota_bytes == 0
    assert changed.etag == client.buckets.get(made.bucket_id).etag != before.etag
    with pytest.raises(PreconditionFailed):
        client.buckets.update(made.bucket_id, quota_bytes=1, if_match=before.etag)
    client.buckets.delete(made.bucket_id)
    assert client.buckets.find(changed.name) is None
    with pytest.raises(NotFound):
        client.buckets.get(made.bucket_id)
    with pytest.raises(NotFound):
        client.buckets.delete(made.bucket_id)


def test_bucket_with_a_file_is_not_deleted_and_lists_it(client: Client) -> None:
    bucket = client.buckets.create(unique())
    record = client.files.upload(b"content", filename="a b.bin", bucket_id=bucket.bucket_id)
    (summary,) = client.files.in_bucket(bucket.bucket_id)
    assert (summary.file_uuid, summary.filename, summary.size_bytes) == (record.file_uuid, "a b.bin", 7)
    with pytest.raises(Conflict):
        client.buckets.delete(bucket.bucket_id)
    client.files.delete(record.file_uuid)
    assert [*client.files.in_bucket(bucket.bucket_id, status="available")] == []


def test_permission_lets_a_user_read_until_it_is_withdrawn(cluster: Cluster, client: Client) -> None:
    user = unique("user")
    record = client.files.upload(b"for you", filename="shared.bin")
    with client_of(cluster, token=cluster.user_token(user)) as theirs:
        with pytest.raises((Forbidden, NotFound)):
            theirs.files.stat(record.file_uuid)
        ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        grant = client.grants.add(user, "read", file_uuid=record.file_uuid, expires_at=ends)
        assert (grant.principal_id, grant.permission, grant.principal_type) == (user, "read", "user")
        again = client.grants.add(user, "read", file_uuid=record.file_uuid)
        assert again.id == grant.id
        assert b"".join(theirs.files.read(record.file_uuid)) == b"for you"
        with pytest.raises(Forbidden):
            theirs.files.delete(record.file_uuid)
        assert [each.id for each in client.grants.list(file_uuid=record.file_uuid)] == [grant.id]
        given = [each for each in theirs.grants.list() if each.id == grant.id]
        assert [(each.target, each.file_uuid) for each in given] == [("file", record.file_uuid)]
        client.grants.withdraw(grant.id, file_uuid=record.file_uuid)
        with pytest.raises((Forbidden, NotFound)):
            theirs.files.stat(record.file_uuid)


def test_name_that_does_not_exist_is_refused_if_that_is_wanted(client: Client) -> None:
    record = client.files.upload(b"x", filename="x.bin")
    user = unique("user")
    for call in (
        partial(client.users.put, user, disabled=True),
        partial(client.users.mint_token, user),
        partial(client.grants.add, user, "read", file_uuid=record.file_uuid),
    ):
        with pytest.raises(NotFound):
            call(existing=True)
    assert [*client.grants.list(file_uuid=record.file_uuid)] == []
    with pytest.raises(NotFound):  # what a flag is sent as is understood
        client.nodes.remove("nobody-x", force=True, is_gone=True)
    with pytest.raises(NotFound):
        client.nodes.drain("nobody-x", force=True)


def test_group_has_a_permission_on_a_bucket(cluster: Cluster, client: Client) -> None:
    user, group = unique("user"), unique("group")
    bucket = client.buckets.create(unique())
    client.grants.add(group, "write", bucket_id=bucket.bucket_id, principal_type="group")
    minted = client.users.mint_token(user, groups=[group], ttl_seconds=600)
    cluster.remember(minted.token)
    assert minted.token not in repr(minted)
    with client_of(cluster, token=minted.token) as theirs:
        me = theirs.whoami()
        assert (me.user_id, me.groups, me.disabled) == (user, [group], False)
        record = theirs.files.upload(b"x", filename="theirs.bin", bucket_id=bucket.bucket_id)
        assert record.owner_id == user


def test_share_is_read_by_anybody_until_it_is_revoked(cluster: Cluster, client: Client) -> None:
    record = client.files.upload(b"for everybody", filename="public.bin")
    share = client.shares.create(record.file_uuid)
    cluster.remember(share.token)
    assert read_by_anybody(cluster, share.url) == (200, b"for everybody")
    (listed,) = client.shares.list(record.file_uuid)
    assert listed.status == "active"
    client.shares.revoke(record.file_uuid, listed.id)
    assert read_by_anybody(cluster, share.url)[0] in (404, 410)


def read_by_anybody(cluster: Cluster, url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(parts.netloc, context=cluster.context, timeout=30)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_user_is_made_changed_disabled_and_deleted(cluster: Cluster, client: Client) -> None:
    name = unique("user")
    assert client.users.put(name, groups=["a"]).groups == ["a"]
    assert client.users.put(name, roles=["admin"]).groups == ["a"]
    assert client.users.get(name).roles == ["admin"]
    assert name in {user.user_id for user in client.users.list()}
    token = cluster.remember(client.users.mint_token(name, ttl_seconds=600).token)
    with client_of(cluster, token=token) as theirs:
        assert theirs.whoami().user_id == name
        client.users.put(name, disabled=True)
        with pytest.raises(Unauthorized):
            theirs.whoami()
    client.users.delete(name)
    with pytest.raises(NotFound):
        client.users.get(name)


def test_revoked_user_has_no_token_any_more(cluster: Cluster, client: Client) -> None:
    name = unique("user")
    with client_of(cluster, token=cluster.user_token(name)) as theirs:
        assert theirs.whoami().user_id == name
        client.users.revoke(name)
        with pytest.raises(Unauthorized):
            theirs.whoami()


def test_join_token_is_minted_listed_and_ended(cluster: Cluster, client: Client) -> None:
    minted = client.join_tokens.create(ttl_seconds=600, max_uses=2)
    cluster.remember(minted.token)
    assert minted.token not in repr(minted)
    listed = {token.token_id: token for token in client.join_tokens.list()}
    assert (listed[minted.token_id].max_uses, listed[minted.token_id].uses) == (2, 0)
    client.join_tokens.delete(minted.token_id)
    assert minted.token_id not in {token.token_id for token in client.join_tokens.list()}
    with pytest.raises(NotFound):
        client.join_tokens.delete(minted.token_id)


def test_job_runs_to_its_end(client: Client) -> None:
    assert [job.job_name for job in client.jobs.list()] == sorted(kind.name for kind in JOBS)
    triggered = client.jobs.trigger("snapshot")
    run = client.jobs.wait(triggered.run_id, timeout_s=60)
    assert (run.job_name, run.status) == ("snapshot", "completed")
    assert run.result["bytes"] > 0
    assert triggered.run_id in {each.run_id for each in client.jobs.runs(job_name="snapshot")}
    assert client.jobs.run(triggered.run_id) == run
    with pytest.raises((NotFound, InvalidRequest)):
        client.jobs.trigger("no-such-job")


def test_nodes_and_the_state_of_the_cluster_are_told(cluster: Cluster, client: Client) -> None:
    nodes = {node.id: node for node in client.nodes.list()}
    assert set(nodes) >= {node.id for node in cluster.nodes}
    member = cluster.nodes[0]
    node = client.nodes.get(member.id)
    assert (node.url, node.api_port, node.draining) == (member.url, member.api_port, False)
    assert client.cluster.status()["leader"]
    assert [*client.cluster.damaged()] == []


def test_user_who_is_no_admin_is_refused_what_admins_do(cluster: Cluster) -> None:
    with client_of(cluster, token=cluster.user_token(unique("user"))) as theirs:
        for refused in (lambda: theirs.jobs.trigger("snapshot"), lambda: [*theirs.users.list()]):
            with pytest.raises(Forbidden):
                refused()


def test_wrong_token_is_told_as_such(cluster: Cluster) -> None:
    with client_of(cluster, token="not.a.token") as stranger, pytest.raises(Unauthorized):
        stranger.whoami()


def test_lists_go_over_all_pages_in_order(client: Client) -> None:
    project_id = unique("project")
    made = [
        client.files.upload(bytes([number]), kind="project", filename=f"{number}.bin", project_id=project_id)
        for number in range(LISTED)
    ]
    expected = [record.file_uuid for record in made]
    for limit in ("1", "2", str(LISTED)):
        listed = client.projects.list(project_id=project_id, limit=limit)
        assert [record.file_uuid for record in listed] == expected
    several = client.files.list("project", project_id=project_id, limit="2")
    assert [record.filename for record in several] == [f"{number}.bin" for number in range(LISTED)]


def test_list_of_all_kinds_has_each_with_its_own_record(client: Client) -> None:
    name = unique("kinds")
    client.files.upload(b"p", kind="project", filename=f"{name}.p")
    client.files.upload(b"i", kind="image", filename=f"{name}.i")
    client.files.upload(b"b", kind="backup", filename=f"{name}.b")
    listed = list(client.files.list(filename=name, status="available"))
    assert [type(record) for record in listed] == [Project, Image, Backup]
    assert [record.kind for record in listed] == ["project", "image", "backup"]
    assert [client.files.get(record.file_uuid) for record in listed] == [
        client.projects.get(listed[0].file_uuid),
        client.images.get(listed[1].file_uuid),
        client.backups.get(listed[2].file_uuid),
    ]


def test_image_is_found_by_its_md5(client: Client) -> None:
    content = secrets.token_bytes(1000)
    md5 = hashlib.md5(content).hexdigest()
    assert client.images.find(md5=md5) is None
    image = client.files.upload(content, kind="image", filename="router.qcow2", format="qcow2")
    newer = client.files.upload(content, kind="image", filename="again.qcow2", format="qcow2")
    found = client.images.find(md5=md5.upper())
    assert found is not None
    assert found.file_uuid == newer.file_uuid
    client.images.delete(newer.file_uuid)
    found = client.images.find(md5=md5)
    assert found is not None
    assert (found.file_uuid, found.md5, found.format) == (image.file_uuid, md5, "qcow2")


def test_record_is_changed_only_as_it_was_seen(client: Client) -> None:
    uploaded = client.files.upload(b"kept", filename="kept.bin")
    assert isinstance(uploaded, Backup)
    assert uploaded.etag
    changed = client.backups.update(uploaded.file_uuid, if_match=uploaded.etag, retention_period=2)
    assert (changed.retention_period, bool(changed.expires_at)) == (2, True)
    assert changed.etag != uploaded.etag
    with pytest.raises(PreconditionFailed):
        client.files.update(uploaded.file_uuid, if_match=uploaded.etag, retention_period=3)
    with pytest.raises(PreconditionFailed):
        client.backups.delete(uploaded.file_uuid, if_match=uploaded.etag)
    assert client.files.update(uploaded.file_uuid, if_match=changed.etag, retention_period=3).etag
    with pytest.raises(InvalidRequest, match="no_such_field"):
        client.files.update(uploaded.file_uuid, no_such_field=1)


def test_file_that_is_not_there_is_told_as_such(client: Client) -> None:
    for absent in ("0192d3a0-0000-7000-8000-000000000000", "no uuid", "../buckets"):
        for ask in (client.files.get, client.files.stat, client.files.delete, client.files.download):
            with pytest.raises(NotFound):
                ask(absent)


def test_any_operation_can_be_called(client: Client) -> None:
    answer = client.call("POST", "/api/v1/buckets", dict[str, object], body={"name": (name := unique())})
    assert answer["name"] == name
    assert client.call("DELETE", f"/api/v1/buckets/{answer['bucket_id']}", dict[str, object])


async def test_client_for_asyncio_does_the_same(async_client: AsyncClient) -> None:
    store = async_client
    bucket = await store.buckets.create(unique())
    record = await store.files.upload(b"asynchronous", filename="a.bin", bucket_id=bucket.bucket_id)
    assert [file.file_uuid async for file in store.files.in_bucket(bucket.bucket_id)] == [record.file_uuid]
    assert b"".join([part async for part in store.files.read(record.file_uuid, 1, 4)]) == b"syn"
    assert (await store.whoami()).user_id == "admin"
    assert record.file_uuid in [file.file_uuid async for file in store.backups.list(filename="a.bin")]
    await store.files.delete(record.file_uuid)
    await store.buckets.delete(bucket.bucket_id)


def test_manifest_of_what_is_no_archive_is_told(client: Client) -> None:
    record = client.files.upload(json.dumps({}).encode(), kind="project", filename="lab.gns3p")
    assert client.files.manifest(record.file_uuid).file_uuid == record.file_uuid
