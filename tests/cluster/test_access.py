"""Credentials on every endpoint of a real cluster, and what one user may not do with another's file."""

import pytest

from tests.cluster.harness import Answer, Cluster

FILE = "0192f0c1-2345-7abc-8def-0123456789ab"
ENDPOINTS = [
    ("GET", "/project-files"),
    ("POST", "/project-files"),
    ("GET", f"/project-files/{FILE}"),
    ("PATCH", f"/project-files/{FILE}"),
    ("DELETE", f"/project-files/{FILE}"),
    ("POST", "/auth/users/somebody/token"),
    ("GET", "/auth/whoami"),
    ("GET", f"/files/{FILE}"),
    ("HEAD", f"/files/{FILE}"),
    ("GET", f"/files/{FILE}/status"),
    ("HEAD", f"/files/{FILE}/content"),
    ("PATCH", f"/files/{FILE}/content"),
    ("PUT", f"/files/{FILE}/content"),
    ("DELETE", f"/files/{FILE}/content"),
    ("GET", "/cluster/status"),
    ("GET", "/cluster/nodes"),
    ("GET", "/cluster/nodes/node-1"),
    ("POST", "/cluster/join-tokens"),
    ("GET", "/cluster/join-tokens"),
    ("DELETE", "/cluster/join-tokens/abc"),
    ("POST", "/cluster/join/filestore"),
]
ADMIN_ONLY = [
    ("POST", "/auth/users/somebody/token"),
    ("GET", "/cluster/status"),
    ("GET", "/cluster/nodes"),
    ("POST", "/cluster/join-tokens"),
    ("GET", "/cluster/join-tokens"),
]
TUS = {"Tus-Resumable": "1.0.0", "Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}


def unauthorized(answer: Answer, method: str) -> None:
    assert answer.status == 401
    if method != "HEAD":
        assert answer.json == {
            "code": "unauthorized",
            "error": "Unauthorized",
            "details": "A valid credential is required.",
        }


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_endpoint_refuses_absent_and_bad_credentials(cluster: Cluster, method: str, path: str) -> None:
    admin = cluster.admin_token
    flipped = admin[:-10] + ("A" if admin[-10] != "A" else "B") + admin[-9:]
    bad = [None, "Basic YTpi", "Bearer", f"Bearer {flipped}", f"bearer {admin} {admin}", admin]
    for value in bad:
        headers = {} if value is None else {"Authorization": value}
        unauthorized(cluster.request(method, path, token=None, headers=headers | TUS, stranger=True), method)
    unauthorized(cluster.request(method, f"{path}?access_token={admin}", token=None, stranger=True), method)


@pytest.mark.parametrize(("method", "path"), ADMIN_ONLY)
def test_user_without_role_is_refused_what_only_admins_may(cluster: Cluster, method: str, path: str) -> None:
    answer = cluster.request(
        method, path, token=cluster.user_token("plain"), body={} if method == "POST" else None
    )
    assert (answer.status, answer.json["code"]) == (403, "forbidden")


def test_file_of_another_user_is_forbidden(cluster: Cluster) -> None:
    owner, other = cluster.user_token("owner"), cluster.user_token("other")
    file_uuid = cluster.store(b"mine", token=owner)
    pending = cluster.create(token=owner)["file_uuid"]
    requests = [
        ("GET", f"/project-files/{file_uuid}"),
        ("PATCH", f"/project-files/{file_uuid}"),
        ("DELETE", f"/project-files/{file_uuid}"),
        ("GET", f"/files/{file_uuid}"),
        ("GET", f"/files/{pending}/status"),
        ("PUT", f"/files/{pending}/content"),
        ("PATCH", f"/files/{pending}/content"),
        ("DELETE", f"/files/{pending}/content"),
    ]
    for node in cluster.nodes:
        for method, path in requests:
            headers = TUS if path.endswith("/content") else {}
            body: object = {} if method == "PATCH" and not headers else None
            answer = cluster.request(method, path, token=other, node=node, headers=headers, body=body)
            assert (answer.status, answer.json["code"]) == (403, "forbidden"), (method, path)
    assert cluster.get(f"/files/{file_uuid}", token=owner).body == b"mine"
    assert file_uuid not in str(cluster.get("/project-files", token=other).json)


def test_health_and_the_root_certificate_need_no_credential(cluster: Cluster) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/.well-known/jwks.json", "/cluster/ca"):
        for member in cluster.members:
            assert cluster.get(path, token=None, node=member).status == 200, (path, member.id)


def test_no_log_holds_a_secret(cluster: Cluster) -> None:
    secrets = [cluster.admin_token, cluster.user_token("whose-token-is-looked-for"), cluster.join_token()]
    for token in secrets:
        cluster.get("/project-files", token=token, stranger=True)
        cluster.get(f"/project-files?token={token}", token=None, stranger=True)
        cluster.get(f"/{token}", stranger=True)
        cluster.post("/cluster/join/filestore", {}, token=token, stranger=True)
    assert not cluster.leaked_secrets()
