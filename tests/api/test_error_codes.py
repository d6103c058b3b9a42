"""Every error code that the interface promises, raised by a real cluster over HTTPS."""

import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

import pytest

from ca.errors import CATALOGUE
from deploy.dev_cluster import Member
from tests.api.expectations import KINDS, NOBODY, check_refused, create, person, store, unique
from tests.cluster.harness import STRANGERS, Answer, Cluster

Cause = Callable[[Cluster], Answer]
ATTEMPTS: Final = 60  # more than an address may fail in so short a time
OTHER_SHA256: Final = "0" * 64


def connect(cluster: Cluster, member: Member) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", member.api_port), timeout=30)
    return cluster.context.wrap_socket(plain, server_hostname="127.0.0.1")


def answer_on(connection: ssl.SSLSocket) -> Answer:
    """What comes back on a raw connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    received = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, received, response.read())


def conflict(cluster: Cluster) -> Answer:
    return cluster.post("/buckets", {"name": "default"})


def not_available(cluster: Cluster) -> Answer:
    return cluster.get(f"/files/{create(cluster, '/vms')['file_uuid']}")


def protected(cluster: Cluster) -> Answer:
    file_uuid = store(cluster, "/vms", b"x", protect_days=1)
    return cluster.request("DELETE", f"/vms/{file_uuid}")


def offset_mismatch(cluster: Cluster) -> Answer:
    url = create(cluster, "/vms", size_bytes=10)["upload_url"]
    return cluster.request("PUT", url, content=b"12345", headers={"Content-Range": "bytes 5-9/10"})


def gone(cluster: Cluster) -> Answer:
    shared = cluster.post(f"/files/{store(cluster, '/vms', b'x')}/public-token")
    cluster.remember(shared.json["token"])
    assert cluster.request("DELETE", shared.headers["location"]).status == 200
    return cluster.get(shared.json["url"], token=None, stranger=True)


def precondition_failed(cluster: Cluster) -> Answer:
    file_uuid = store(cluster, "/vms", b"x")
    return cluster.get(f"/files/{file_uuid}", headers={"If-Match": f'"{OTHER_SHA256}"'})


def payload_too_large(cluster: Cluster) -> Answer:
    url = create(cluster, "/vms", size_bytes=3)["upload_url"]
    return cluster.request("PUT", url, content=b"1234")


def unsupported_media_type(cluster: Cluster) -> Answer:
    return cluster.request("POST", "/buckets", content=b"name=x", headers={"Content-Type": "text/plain"})


def range_not_satisfiable(cluster: Cluster) -> Answer:
    return cluster.get(f"/files/{store(cluster, '/vms', b'1234567')}", headers={"Range": "bytes=7-"})


def upload_locked(cluster: Cluster) -> Answer:
    """One request has begun to write, and waits; another comes."""
    url = create(cluster, "/vms", size_bytes=10)["upload_url"]
    parts = urlsplit(url)
    holder = next(node for node in cluster.nodes if node.api_port == parts.port)
    with connect(cluster, holder) as first:
        head = f"PUT {parts.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n"
        first.sendall(f"{head}Authorization: Bearer {cluster.admin_token}\r\n\r\n".encode())
        assert first.recv(64).startswith(b"HTTP/1.1 100 ")
        first.sendall(b"12345")
        return cluster.request("PUT", url, content=b"x" * 10)


def rate_limited(cluster: Cluster) -> Answer:
    """One address fails to authenticate, again and again."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1",
        cluster.nodes[0].api_port,
        timeout=30,
        context=cluster.context,
        source_address=(next(STRANGERS), 0),
    )
    with contextlib.closing(connection):
        for _ in range(ATTEMPTS):
            connection.request("GET", "/api/v1/buckets", headers={"Authorization": "Bearer x"})
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, received, response.read())
            if answer.status != 401:
                break
    return answer


def checksum_mismatch(cluster: Cluster) -> Answer:
    url = create(cluster, "/vms", blob_sha256=OTHER_SHA256)["upload_url"]
    return cluster.request("PUT", url, content=b"x")


def internal(cluster: Cluster) -> Answer:
    """Where the bytes of an upload belong, there is a directory, on every node."""
    content = bytes(200_000)  # less would never get there
    made = create(cluster, "/vms", size_bytes=len(content))
    for node in cluster.nodes:
        (cluster.data(node) / "uploads" / made["file_uuid"] / "data").mkdir(parents=True)
    return cluster.request("PUT", made["upload_url"], content=content)


def unavailable(cluster: Cluster) -> Answer:
    """An administrative act that could not be recorded."""
    audit = cluster.data(cluster.nodes[0]) / "audit.log"
    audit.unlink()
    audit.mkdir()
    return cluster.post("/jobs/expire", node=cluster.nodes[0])


# What anybody can bring about at any time, with the headers that must come with the answer.
CAUSES: Final[dict[str, tuple[Cause, dict[str, str]]]] = {
    "invalid_request": (lambda cluster: cluster.post("/vms", {}), {}),
    "unauthorized": (lambda cluster: cluster.get("/buckets", token=None), {"www-authenticate": "Bearer"}),
    "forbidden": (lambda cluster: cluster.get("/auth/users", token=person(cluster).token), {}),
    "not_found": (lambda cluster: cluster.get(f"/files/{NOBODY}"), {}),
    "method_not_allowed": (
        lambda cluster: cluster.request("PUT", "/buckets", body={}),
        {"allow": "GET, HEAD, OPTIONS, POST"},
    ),
    "not_acceptable": (lambda cluster: cluster.get("/buckets", headers={"Accept": "text/html"}), {}),
    "conflict": (conflict, {}),
    "protected": (protected, {}),
    "not_available": (not_available, {}),
    "offset_mismatch": (offset_mismatch, {"upload-offset": "0"}),
    "gone": (gone, {}),
    "precondition_failed": (precondition_failed, {}),
    "payload_too_large": (payload_too_large, {}),
    "uri_too_long": (lambda cluster: cluster.get("/buckets?" + "x" * 9000), {}),
    "not_implemented": (lambda cluster: cluster.request("BREW", "/buckets"), {}),
    "unsupported_media_type": (unsupported_media_type, {}),
    "range_not_satisfiable": (range_not_satisfiable, {"content-range": "bytes */7"}),
    "upload_locked": (upload_locked, {}),
    "rate_limited": (rate_limited, {"retry-after": "1"}),
    "checksum_mismatch": (checksum_mismatch, {}),
    "insufficient_storage": (
        lambda cluster: cluster.post("/vms", KINDS["/vms"] | {"size_bytes": 2**53 - 1}),
        {},
    ),
}
FAULTS: Final[dict[str, tuple[Cause, dict[str, str]]]] = {
    "internal": (internal, {}),
    "unavailable": (unavailable, {"retry-after": "30"}),
}
SLOW: Final = "request_timeout"
_POST: Final = b"POST /api/v1/buckets HTTP/1.1\r\nHost: x\r\n"
_MANY: Final = b"".join(b"X-%d: a\r\n" % number for number in range(70))
MALFORMED: Final = [
    b"nonsense\r\n\r\n",
    b"GET /api/v1/buckets\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    b"GET /api/v1/buckets HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET /api/v1/buckets HTTP/1.1\r\nHost : x\r\n\r\n",
    b"GET /api/v1/buckets HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
    b"GET /api/v1/buckets HTTP/1.1\r\nHost: x\r\n" + _MANY + b"\r\n",
    _POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    _POST + b"Content-Length: -5\r\n\r\n",
    _POST + b"Content-Length: 5, 6\r\n\r\n",
]


@pytest.fixture(scope="module", autouse=True)
def slow_connection(cluster: Cluster) -> Iterator[ssl.SSLSocket]:
    """A request that stops in its headers, from before the first test on: nobody waits for the last."""
    with connect(cluster, cluster.nodes[0]) as connection:
        connection.sendall(b"GET /api/v1/buckets HTTP/1.1\r\nHost: ")
        yield connection


def test_every_code_of_the_catalogue_is_raised_here() -> None:
    assert {*CAUSES, *FAULTS, SLOW} == {kind.code for kind in CATALOGUE}


@pytest.mark.parametrize("code", CAUSES)
def test_error_has_its_status_title_and_headers(cluster: Cluster, code: str) -> None:
    cause, headers = CAUSES[code]
    answer = cause(cluster)
    check_refused(answer, code)
    assert answer.json["details"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    for name, value in headers.items():
        assert answer.headers[name] == value


def test_fault_of_ours_shows_the_request_id_and_nothing_else(own_cluster: Cluster) -> None:
    answers = {code: cause(own_cluster) for code, (cause, _) in FAULTS.items()}
    for code, answer in answers.items():
        check_refused(answer, code)
        for name, value in FAULTS[code][1].items():
            assert answer.headers[name] == value
    request_id = answers["internal"].headers["x-request-id"]
    assert answers["internal"].json["details"] == (
        f"Internal error. The service's log has the details under request id {request_id}."
    )
    assert any(request_id in text for text in own_cluster.logs().values())


def test_json_over_its_limit_is_too_large(cluster: Cluster) -> None:
    name = unique("x" * 2**20)
    check_refused(cluster.post("/buckets", {"name": name}), "payload_too_large")


@pytest.mark.parametrize("request_bytes", MALFORMED)
def test_error_before_any_handler_is_json_too(cluster: Cluster, request_bytes: bytes) -> None:
    for member in (cluster.nodes[0], cluster.coordinators[0]):
        with connect(cluster, member) as connection:
            connection.sendall(request_bytes)
            answer = answer_on(connection)
        check_refused(answer, "invalid_request")
        assert answer.headers["content-type"] == "application/json"


def test_headers_that_do_not_end_are_a_timeout(slow_connection: ssl.SSLSocket) -> None:
    check_refused(answer_on(slow_connection), SLOW)
