"""A real nginx in front of a node, with the configuration that docs/reverse-proxy.md gives."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.processes import Child, free_ports, wait_until
from tests.cluster.harness import API, Cluster
from tests.cluster.test_metrics import families, value
from tests.cluster.web_browser import HOST, STRANGER, Browser
from tests.web_certificates import trusting, write_pair

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reverse-proxy.md"
PIECE_BYTES = 4 << 20
SIZE_BYTES = 96 << 20
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
_AROUND = """
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log info;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
{server}
}}
"""

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Site:
    """A cluster of one node, and nginx before it. `log` is that of nginx."""

    cluster: Cluster
    browser: Browser
    public_url: str
    log: Path

    def received_bytes(self) -> float:
        """Of content, by the node since it began."""
        found = families(self.cluster, self.cluster.nodes[0])
        return value(found, "filestore_upload_bytes_total")

    def audited(self, action: str, target: str) -> list[str]:
        """From which addresses this was asked."""
        text = (self.cluster.data(self.cluster.nodes[0]) / "audit.log").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return [
            each["client_address"] for each in lines if (each["action"], each["object"]) == (action, target)
        ]


def documented(**replaced: str) -> str:
    """The server that the page describes, with these pieces of it replaced."""
    found = re.search(r"<!-- nginx -->\n```nginx\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    text = found[1]
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def site(nginx: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("proxy")
    plain_port, public_port = free_ports(2)
    pair = write_pair(directory / "pair", (HOST,))
    server = documented(
        **{
            "listen 443 ssl": f"listen 127.0.0.1:{public_port} ssl",
            "127.0.0.1:7080": f"127.0.0.1:{plain_port}",
            "/etc/filestore/web.pem": str(pair.certificate),
            "/etc/filestore/web.key": str(pair.key),
        }
    )
    (directory / "nginx.conf").write_text(_AROUND.format(directory=directory, server=server))
    public_url = f"https://{HOST}"  # as if it listened on 443
    options = ("--http", f"127.0.0.1:{plain_port}", "--trusted-proxies", "127.0.0.1")
    log = directory / "error.log"
    with (
        Cluster(
            directory / "cluster", node_count=1, replicas=1, write_quorum=1, node_options=options
        ) as cluster,
        log.open("ab") as output,
    ):
        process = subprocess.Popen(
            [nginx, "-p", str(directory), "-c", str(directory / "nginx.conf")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            child = Child("nginx", process, log)
            pid = directory / "nginx.pid"
            wait_until(pid.exists, what="nginx", timeout_s=10, watched=[child])
            browser = Browser(cluster, trusting(pair.certificate), port=public_port)
            yield Site(cluster, browser, public_url, log)
        finally:
            process.terminate()
            process.wait()


def test_large_upload_streams_through_and_comes_back_in_ranges(site: Site) -> None:
    """What has come is on the node while the client still sends: nothing waits for the end on a disk."""
    browser = site.browser
    created = browser.create(SIZE_BYTES)
    assert created["upload_url"].startswith(f"{site.public_url}{API}/files/")
    assert site.received_bytes() == 0
    path, file_uuid = created["upload_url"].removeprefix(site.public_url), created["file_uuid"]
    pieces = [os.urandom(PIECE_BYTES) for _ in range(SIZE_BYTES // PIECE_BYTES)]

    def sent() -> Iterator[bytes]:
        yield from pieces[:-1]
        wait_until(lambda: site.received_bytes() >= PIECE_BYTES, what="bytes on the node", timeout_s=20)
        yield pieces[-1]

    headers = {**TUS, "Upload-Offset": "0", "Content-Length": str(SIZE_BYTES)}
    answer = browser.ask("PATCH", path, content=sent(), headers=headers)
    assert (answer.status, answer.headers["upload-offset"]) == (204, str(SIZE_BYTES))
    content = b"".join(pieces)
    file = f"{API}/files/{file_uuid}"
    whole = browser.ask("GET", file)
    assert hashlib.sha256(whole.body).digest() == hashlib.sha256(content).digest()
    for start, stop in ((0, 100), (PIECE_BYTES - 5, PIECE_BYTES + 5), (SIZE_BYTES - 9, SIZE_BYTES)):
        part = browser.ask("GET", file, headers={"Range": f"bytes={start}-{stop - 1}"})
        assert (part.status, part.body) == (206, content[start:stop])
        assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{SIZE_BYTES}"
    several = browser.ask("GET", file, headers={"Range": "bytes=0-9,100-109"})
    assert several.headers["content-type"].startswith("multipart/byteranges")
    assert "buffered to a temporary file" not in site.log.read_text()


def test_client_s_address_is_on_record_whatever_it_claims(site: Site) -> None:
    claims: list[dict[str, str]] = [
        {},
        {"X-Forwarded-For": "203.0.113.9"},
        {"Forwarded": "for=203.0.113.9;host=evil.example.org"},
        {"X-Forwarded-Host": "evil.example.org", "X-Forwarded-Proto": "http"},
    ]
    for claim in claims:
        created = site.browser.create(9, headers=claim)
        assert created["upload_url"].startswith(site.public_url)
        file = f"{API}/project-files/{created['file_uuid']}"
        assert site.browser.ask("DELETE", file, headers=claim).status == 200
        assert site.audited("delete_file", created["file_uuid"]) == [STRANGER]


def test_links_name_what_the_proxy_was_asked_by(site: Site) -> None:
    created = site.browser.create(4)
    path = created["upload_url"].removeprefix(site.public_url)
    assert site.browser.ask("PUT", path, content=b"abcd").status == 200
    made = site.browser.ask("POST", f"{API}/files/{created['file_uuid']}/public-token", content=b"").json
    site.cluster.secrets.add(made["token"])
    assert made["url"].startswith(f"{site.public_url}{API}/public/files/")
    answer = site.browser.ask("GET", made["url"].removeprefix(site.public_url), token=None)
    assert (answer.status, answer.body) == (200, b"abcd")


def test_refusal_before_the_body_reaches_the_client(site: Site) -> None:
    created = site.browser.create(4)
    path = created["upload_url"].removeprefix(site.public_url)
    answer = site.browser.ask("PUT", path, content=b"abcd", token="wrong")
    assert (answer.status, answer.json["code"]) == (401, "unauthorized")
