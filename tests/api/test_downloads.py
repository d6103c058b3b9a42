"""Downloads over HTTP, beyond the basics in the cluster tests: who may, and public links."""

import hashlib
import http.client
import os
import secrets
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from tests.cluster.harness import API, Cluster
from web.rate_limits import PUBLIC_TOKENS_BURST

CONTENT = os.urandom(100_000)
ETAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'
DEFAULT_BUCKET = "00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def file_uuid(cluster: Cluster) -> str:
    """A file that every node holds."""
    return cluster.store(CONTENT, "\u202eröck's “lab”;1.gns3p", content_type="application/zip")


@pytest.fixture(scope="module")
def link(cluster: Cluster, file_uuid: str) -> str:
    """A public link to it."""
    return str(new_link(cluster, file_uuid)["url"])


def new_link(cluster: Cluster, file_uuid: str, **fields: Any) -> dict[str, str]:
    answer = cluster.post(f"/files/{file_uuid}/public-token", fields)
    assert answer.status == 201, answer.body
    cluster.secrets.add(answer.json["token"])  # no log may hold it
    found: dict[str, str] = answer.json
    return found


def test_names_are_encoded_as_rfc_6266_has_it(cluster: Cluster, file_uuid: str) -> None:
    disposition = cluster.get(f"/files/{file_uuid}").headers["content-disposition"]
    plain, _, extended = disposition.partition("; filename*=UTF-8''")
    assert plain == 'attachment; filename="_r_ck\'s _lab_;1.gns3p"'
    assert extended == "_r%C3%B6ck%27s%20%E2%80%9Clab%E2%80%9D%3B1.gns3p"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("asked", [{}, {"Range": "bytes=5-9"}, {"Range": "bytes=0-1,5-9"}])
def test_every_answer_with_content_names_its_digest(
    cluster: Cluster, file_uuid: str, method: str, asked: dict[str, str]
) -> None:
    answer = cluster.request(method, f"/files/{file_uuid}", headers=asked)
    assert answer.status == (206 if asked and method == "GET" else 200)
    assert answer.headers["repr-digest"].startswith("sha-256=:")
    assert answer.headers["etag"] == ETAG
    if method == "HEAD":
        assert (answer.headers["content-length"], answer.body) == (str(len(CONTENT)), b"")


def test_date_of_content_stays_when_its_metadata_change(cluster: Cluster) -> None:
    file_uuid = cluster.store(CONTENT)
    # Another second, by the answers' own clock.
    first = cluster.get(f"/files/{file_uuid}").headers["last-modified"]
    while cluster.get("/auth/whoami").headers["date"] == first:
        pass
    answer = cluster.request("PATCH", f"/project-files/{file_uuid}", body={"version_tag": "renamed"})
    assert answer.status == 200
    condition = {"If-Range": first, "Range": "bytes=5-9"}
    answer = cluster.get(f"/files/{file_uuid}", headers=condition)
    assert (answer.status, answer.body) == (206, CONTENT[5:10])
    assert answer.headers["last-modified"] == first
    assert cluster.get(f"/files/{file_uuid}", headers={"If-Modified-Since": first}).status == 304


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Range": "bytes=0-1", "If-Range": ETAG}, 206),
        ({"Range": "bytes=0-1", "If-Range": f"W/{ETAG}"}, 200),
        ({"Range": "bytes=0-1", "If-Range": "Thu, 01 Jan 1970 00:00:00 GMT"}, 200),
        ({"Range": "bytes=0-1", "If-None-Match": ETAG}, 304),
        ({"Range": "bytes=0-1", "If-Match": '"x"'}, 412),
        ({"If-Modified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 200),
        ({"If-Unmodified-Since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 412),
        ({"Range": "bytes=5-1"}, 200),
    ],
)
def test_conditions_and_ranges_together(
    cluster: Cluster, file_uuid: str, headers: dict[str, str], status: int
) -> None:
    assert cluster.get(f"/files/{file_uuid}", headers=headers).status == status


def test_range_holds_while_the_date_is_the_same(cluster: Cluster, file_uuid: str) -> None:
    date = cluster.get(f"/files/{file_uuid}").headers["last-modified"]
    answer = cluster.get(f"/files/{file_uuid}", headers={"Range": "bytes=0-1", "If-Range": date})
    assert (answer.status, answer.body) == (206, CONTENT[:2])


def test_link_needs_no_credential_and_ignores_one(cluster: Cluster, link: str) -> None:
    for node in cluster.nodes:
        path = API + link.partition(API)[2]
        for token in (None, "garbage"):
            answer = cluster.request("GET", path, node=node, token=token)
            assert (answer.status, answer.body) == (200, CONTENT)
            assert answer.headers["cache-control"] == "private, no-store"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["content-disposition"].startswith("attachment; ")


def test_link_tells_who_shares_and_until_when(cluster: Cluster, link: str) -> None:
    for method in ("HEAD", "GET"):
        answer = cluster.request(method, link, token=None)
        assert answer.headers["shared-by"] == "admin"
        left = parsedate_to_datetime(answer.headers["link-expires"]) - datetime.now(UTC)
        assert timedelta(hours=23) < left <= timedelta(days=1)


def test_link_answers_as_a_download_does(cluster: Cluster, link: str) -> None:
    def ask(method: str = "GET", **headers: str) -> tuple[int, bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = cluster.request(method, link, token=None, headers=named)
        assert answer.headers["cache-control"] == "private, no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        return answer.status, answer.body

    assert ask("HEAD") == (200, b"")
    assert ask(Range="bytes=10-19") == (206, CONTENT[10:20])
    assert ask(If_None_Match=ETAG) == (304, b"")
    assert ask(If_Match='"x"')[0] == 412
    assert ask(Range="bytes=-0")[0] == 416


@pytest.mark.parametrize("span", ["bytes=0-1023", "bytes=0-", "bytes=7-9", "bytes=-5", "bytes=0-0,5-9"])
def test_range_of_empty_content_is_all_of_it(cluster: Cluster, span: str) -> None:
    file_uuid = cluster.store(b"")
    linked = API + new_link(cluster, file_uuid)["url"].partition(API)[2]
    for node in cluster.nodes:
        for path, token in ((f"/files/{file_uuid}", ""), (linked, None)):
            for _ in range(2):  # also once the node knows the file
                answer = cluster.request("GET", path, node=node, token=token, headers={"Range": span})
                assert (answer.status, answer.body) == (200, b"")
                assert answer.headers["content-length"] == "0"
                assert "content-range" not in answer.headers


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_link_is_for_reading_only(cluster: Cluster, link: str, method: str) -> None:
    answer = cluster.request(method, link, token=None, content=b"")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


def test_link_that_leads_nowhere_is_not_found(cluster: Cluster, link: str) -> None:
    start, _, token = link.rpartition("/")
    other_bucket = link.replace(DEFAULT_BUCKET, DEFAULT_BUCKET[:-1] + "1")
    swapped = f"{start}/{token.swapcase()}"
    for wrong in (
        other_bucket,
        swapped,
        link[:-1],
        f"{link}A",
        f"{start}/",
        f"{start}/{secrets.token_urlsafe(32)}",
        f"{start}/%00{token[3:]}",
        f"{link}?x=1/../",
        f"{start.replace(DEFAULT_BUCKET, 'x')}/{token}",
    ):
        answer = cluster.request("GET", wrong, token=None, stranger=True)
        assert answer.status == (200 if "?" in wrong else 404), wrong


def test_link_ends_with_its_token_and_with_its_maker(cluster: Cluster) -> None:
    file_uuid = cluster.store(b"abcd")
    first, second = new_link(cluster, file_uuid), new_link(cluster, file_uuid)
    listed = cluster.get(f"/files/{file_uuid}/public-tokens").json["public_tokens"]
    assert len(listed) == 2
    assert cluster.request("DELETE", f"/files/{file_uuid}/public-tokens/{listed[0]['id']}").status == 200
    for node in cluster.nodes:
        for made, status in ((first, 410), (second, 200)):
            path = API + made["url"].partition(API)[2]
            answer = cluster.request("GET", path, node=node, token=None, stranger=True)
            assert answer.status == status
    assert cluster.request("DELETE", f"/files/{file_uuid}").status == 200
    assert cluster.request("GET", second["url"], token=None, stranger=True).status in (404, 410)


def test_link_to_a_file_without_content_is_not_available(cluster: Cluster) -> None:
    created = cluster.create(size_bytes=4)
    made = new_link(cluster, created["file_uuid"])
    answer = cluster.request("GET", made["url"], token=None, stranger=True)
    assert (answer.status, answer.json["code"]) == (409, "not_available")
    assert cluster.request("PUT", created["upload_url"], content=b"abcd").status == 200
    assert cluster.request("GET", made["url"], token=None).body == b"abcd"


def test_addresses_that_only_guess_are_slowed_down(cluster: Cluster, link: str) -> None:
    node = cluster.nodes[2]
    connection = http.client.HTTPSConnection(
        "127.0.0.1", node.api_port, timeout=30, context=cluster.context, source_address=("127.77.7.7", 0)
    )

    def ask(token: str) -> http.client.HTTPResponse:
        connection.request("GET", f"{API}/public/files/{DEFAULT_BUCKET}/{token}")
        answer = connection.getresponse()
        answer.read()
        return answer

    try:
        answers = [ask(secrets.token_urlsafe(32)) for _ in range(3 * PUBLIC_TOKENS_BURST)]
        statuses = [answer.status for answer in answers]
        assert statuses[:PUBLIC_TOKENS_BURST] == [404] * PUBLIC_TOKENS_BURST
        refused = [answer for answer in answers if answer.status == 429]  # one goes through each second
        assert int(refused[-1].headers["Retry-After"]) >= 1
        assert ask(link.rpartition("/")[2]).status == 200
    finally:
        connection.close()
    assert '"public link"' in (cluster.data(node) / "failed_attempts.log").read_text()


def test_link_is_in_no_log(cluster: Cluster, file_uuid: str) -> None:
    made = new_link(cluster, file_uuid)
    token, path = made["token"], API + made["url"].partition(API)[2]
    for asked in (path, f"{path}/", f"{path}?redirect=1", path.replace("public/files", "public/file")):
        for method in ("GET", "POST", "OPTIONS"):
            cluster.request(method, asked, token=None, stranger=True)
    assert cluster.request("GET", f"/files/{file_uuid}").status == 200
    assert not [name for name, text in cluster.logs().items() if token in text]
    metrics = cluster.get("/metrics", token=None).body.decode()
    assert token not in metrics
    assert 'route="/api/v1/public/files/{bucket_uuid}/{token}"' in metrics
