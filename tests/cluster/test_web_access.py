"""A cluster that browsers reach: a certificate and an address for them, proxies, pages of other origins."""

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ca.webcertificate import WebCertificateFiles
from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import API, Cluster
from tests.cluster.web_browser import HOST, STRANGER, Browser
from tests.web_certificates import trusting, write_pair

PUBLIC = f"https://{HOST}"
APP = "https://app.example.org"
PROXY = "127.0.9.1"
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
CONTENT = os.urandom(600_000)


def renewed(directory: Path) -> WebCertificateFiles:
    """A new pair in place of an older one, which browsers go on to trust: some members still have it."""
    files = write_pair(directory / "pair", (HOST,))
    with (directory / "trusted.pem").open("ab") as trusted:
        trusted.write(files.certificate.read_bytes())
    return files


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[Cluster]:
    """Three nodes, all with everything. Who kills one starts it again."""
    files = renewed(directory)
    options = (
        *("--web-certificate", str(files.certificate), "--web-key", str(files.key)),
        *("--public-url", PUBLIC, "--trusted-proxies", f"{PROXY},10.0.0.0/8", "--cors-origin", APP),
    )
    with Cluster(directory / "cluster", node_options=options, coordinator_options=options) as started:
        yield started


@pytest.fixture
def browser(cluster: Cluster, directory: Path) -> Browser:
    return Browser(cluster, trusting(directory / "trusted.pem"))


def upload_path(upload_url: str) -> str:
    assert upload_url.startswith(f"{PUBLIC}{API}/files/")
    return upload_url.removeprefix(PUBLIC)


def held_elsewhere(cluster: Cluster) -> tuple[str, Member, Member]:
    """The path of a new upload, its holder, and a node that does not hold it."""
    created = cluster.create(size_bytes=len(CONTENT))
    holder = next(node for node in cluster.nodes if created["upload_url"].startswith(node.url))
    other = next(node for node in cluster.nodes if node is not holder)
    return created["upload_url"].removeprefix(holder.url), holder, other


def audited(cluster: Cluster, member: Member, action: str, target: str) -> list[str]:
    """From which addresses this was asked, as a member has it on record."""
    lines = [json.loads(line) for line in (cluster.data(member) / "audit.log").read_text().splitlines()]
    return [line["client_address"] for line in lines if line["action"] == action and target in line["object"]]


def test_links_name_the_public_address_and_work_there(cluster: Cluster, browser: Browser) -> None:
    created = browser.create(len(CONTENT))
    path = upload_path(created["upload_url"])
    assert browser.ask("PUT", path, content=CONTENT).status == 200
    file = f"{API}/files/{created['file_uuid']}"
    made = browser.ask("POST", f"{file}/public-token", content=b"").json
    ticket = browser.ask("POST", f"{file}/ticket", content=b"").json
    cluster.secrets |= {made["token"], ticket["url"].rpartition("/")[2].rpartition(".")[2]}
    for url in (made["url"], ticket["url"]):
        assert url.startswith(f"{PUBLIC}{API}/")
        for node in cluster.nodes:
            answer = browser.ask(
                "GET", url.removeprefix(PUBLIC), member=node, token=None, headers={"Range": "bytes=5-9"}
            )
            assert (answer.status, answer.body) == (206, CONTENT[5:10])
    redirected = browser.ask("GET", f"{file}?redirect=1")
    assert (redirected.status, redirected.body) == (200, CONTENT)


def test_coordinator_names_the_public_address_too(cluster: Cluster, browser: Browser) -> None:
    upload_path(browser.create(9, member=cluster.coordinators[0])["upload_url"])


def test_tus_creation_leads_to_the_public_address(browser: Browser) -> None:
    told = "filename bGFi,project_id bGFi"
    fields = {"Tus-Resumable": "1.0.0", "Upload-Length": "9", "Upload-Metadata": told}
    answer = browser.ask("POST", f"{API}/project-files", content=b"", headers=fields)
    assert answer.status == 201, answer.body
    upload_path(answer.headers["location"])


def test_who_asks_a_member_by_its_own_address_is_told_the_holder_s(cluster: Cluster) -> None:
    for member in (cluster.nodes[0], cluster.coordinators[0]):
        url = cluster.create(node=member)["upload_url"]
        assert any(url.startswith(node.url) for node in cluster.nodes)


def test_trusted_proxy_tells_the_client_s_address_and_nobody_else_does(
    cluster: Cluster, browser: Browser
) -> None:
    path, holder, other = held_elsewhere(cluster)
    file_uuid = path.split("/")[-2]
    told = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7, 10.1.1.1"}
    answer = browser.ask("DELETE", path, member=other, source=PROXY, headers={**TUS, **told})
    assert answer.status == 204
    assert audited(cluster, holder, "delete_file", file_uuid) == ["203.0.113.7"]
    file_uuid = cluster.create()["file_uuid"]
    forged = {**told, "Filestore-Client-Address": "203.0.113.7"}
    assert browser.ask("DELETE", f"{API}/project-files/{file_uuid}", headers=forged).status == 200
    assert audited(cluster, cluster.nodes[0], "delete_file", file_uuid) == [STRANGER]


def test_rate_of_one_client_behind_a_proxy_is_not_that_of_another(browser: Browser) -> None:
    def status(client: str) -> int:
        told = f"for={client};proto=https"
        path = f"{API}/auth/whoami"
        return browser.ask("GET", path, token="wrong", source=PROXY, headers={"Forwarded": told}).status

    refused = [status("198.51.100.20") for _ in range(30)]
    assert (refused[0], refused[-1]) == (401, 429)
    assert status("198.51.100.21") == 401
    assert status('"[2001:db8::1]:4711"') == 401


def test_page_of_the_configured_origin_uploads_and_downloads(cluster: Cluster, browser: Browser) -> None:
    path = upload_path(browser.create(len(CONTENT))["upload_url"])
    preflight = {"Origin": APP, "Access-Control-Request-Method": "PATCH"}
    answer = browser.ask("OPTIONS", path, token=None, headers=preflight)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, APP)
    assert "tus-version" in answer.headers
    sent = browser.ask("PATCH", path, content=CONTENT, headers={**TUS, "Upload-Offset": "0", "Origin": APP})
    assert (sent.status, sent.headers["access-control-allow-origin"]) == (204, APP)
    assert "Upload-Offset" in sent.headers["access-control-expose-headers"]
    file = path.removesuffix("/content")
    for member in cluster.nodes:
        for _ in range(2):  # the second is answered from what is kept
            found = browser.ask("GET", file, member=member, headers={"Origin": APP, "Range": "bytes=0-99"})
            assert (found.status, found.body) == (206, CONTENT[:100])
            assert found.headers["access-control-allow-origin"] == APP
            plain = browser.ask("GET", file, member=member, headers={"Range": "bytes=0-99"})
            assert plain.headers["vary"] == "Origin"
            assert "access-control-allow-origin" not in plain.headers
    refused = browser.ask("GET", f"{API}/auth/whoami", token=None, headers={"Origin": APP})
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, APP)
    other = browser.ask("GET", f"{API}/auth/whoami", token=None, headers={"Origin": "https://evil.org"})
    assert not [name for name in other.headers if name.startswith("access-control")]


def test_page_of_a_member_may_ask_the_others_and_nobody_else(cluster: Cluster) -> None:
    serving, *others = cluster.members
    for member in others:
        asked = cluster.request("GET", "/auth/whoami", node=member, headers={"Origin": serving.url})
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (200, serving.url)
        for stranger in ("https://127.0.0.1:1", serving.url.replace("https", "http"), "null"):
            told = cluster.request("GET", "/auth/whoami", node=member, headers={"Origin": stranger})
            assert "access-control-allow-origin" not in told.headers
        preflight = {"Origin": serving.url, "Access-Control-Request-Method": "PATCH"}
        answer = cluster.request("OPTIONS", "/audit", node=member, token=None, headers=preflight)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, serving.url)
        assert "Authorization" in answer.headers["access-control-allow-headers"]


def test_page_names_members_to_who_reaches_them(cluster: Cluster, browser: Browser) -> None:
    for member in (cluster.nodes[0], cluster.coordinators[0]):
        own = cluster.request("GET", f"{member.url}/console/", node=member, token=None)
        (asked,) = [part for part in own.headers["content-security-policy"].split("; ") if "connect" in part]
        assert set(asked.split()[2:]) == {each.url for each in cluster.members}
        public = browser.ask("GET", "/console/", member=member, token=None)
        assert "connect-src 'self'; " in public.headers["content-security-policy"]
        assert not [each.id for each in cluster.members if each.url.encode() in public.body]


def web_expiry(cluster: Cluster, member: Member) -> float:
    lines = cluster.get("/metrics", node=member, token=None).body.decode().splitlines()
    found = [line for line in lines if "certificate_expiry" in line and 'certificate="web"' in line]
    return float(found[0].split()[-1])


@pytest.mark.parametrize("role", ["node", "coordinator"])
def test_certificate_is_read_again_at_a_signal_and_a_bad_one_refused(
    cluster: Cluster, directory: Path, role: str
) -> None:
    member = next(member for member in cluster.members if member.role == role)
    before = web_expiry(cluster, member)
    old = (directory / "pair" / "web.key").read_bytes()
    new = renewed(directory)
    key = new.key.read_bytes()
    new.key.write_bytes(old)
    os.kill(cluster.pid(member), signal.SIGHUP)
    refused = "cannot use the new certificate for browsers"
    wait_until(lambda: refused in cluster.logs()[member.id], what="a refusal", timeout_s=10)
    assert web_expiry(cluster, member) == before
    new.key.write_bytes(key)
    os.kill(cluster.pid(member), signal.SIGHUP)
    wait_until(lambda: web_expiry(cluster, member) > before, what="the new certificate", timeout_s=10)
    answer = Browser(cluster, trusting(new.certificate)).ask("GET", "/healthz", member=member, token=None)
    assert answer.status == 200
    assert cluster.get("/healthz", node=member, token=None).status == 200  # with the cluster's root


def test_upload_goes_on_by_the_public_address_when_its_holder_is_killed(
    cluster: Cluster, browser: Browser
) -> None:
    path, holder, other = held_elsewhere(cluster)
    half = len(CONTENT) // 2
    sent = browser.ask(
        "PATCH", path, member=other, content=CONTENT[:half], headers={**TUS, "Upload-Offset": "0"}
    )
    assert (sent.status, sent.headers["upload-offset"]) == (204, str(half))
    cluster.kill(holder)
    try:
        head = browser.ask("HEAD", path, member=other, headers={"Tus-Resumable": "1.0.0"})
        assert (head.status, head.headers["upload-offset"]) == (200, str(half))
        rest = {**TUS, "Upload-Offset": str(half)}
        sent = browser.ask("PATCH", path, member=other, content=CONTENT[half:], headers=rest)
        assert (sent.status, sent.headers["upload-offset"]) == (204, str(len(CONTENT)))
        found = browser.ask("GET", path.removesuffix("/content"), member=other)
        assert hashlib.sha256(found.body).digest() == hashlib.sha256(CONTENT).digest()
    finally:
        cluster.restart(holder)
