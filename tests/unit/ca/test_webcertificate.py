"""The certificate for browsers: who gets it, which pairs are refused in which words, and torn pairs."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from ca.certificates import Authority, new_intermediate, new_root, serial_hex
from ca.errors import FilestoreError
from ca.identity import Identity, Role
from ca.keys import new_key
from ca.tls import Credential
from ca.webcertificate import UnusableWebCertificate, WebCertificate, WebCertificateFiles
from metadata.rpc.tls_contexts import MemberContexts
from runtime.clock import now_ms
from tests.web_certificates import DAY, trusting, write_pair

NODE = Identity("lab", Role.NODE, "n1")
PUBLIC = ("files.example.org", "*.files.example.org")


def loaded(files: WebCertificateFiles) -> WebCertificate:
    made = WebCertificate(files, clock_ms=now_ms)
    made.reload()
    return made


@pytest.fixture
def contexts(tmp_path: Path) -> MemberContexts:
    """Of a node on loopback, with a certificate for browsers, one of whose names is that of the node."""
    root, root_key = new_root("lab", now=datetime.now(UTC))
    authority = Authority(root, *new_intermediate(root, root_key, "lab", now=datetime.now(UTC)))
    key, credential = new_key(), Credential(tmp_path / "credential.pem", root)
    leaf = authority.sign_leaf(key.public_key(), NODE, "127.0.0.1", now=datetime.now(UTC))
    credential.write(key, leaf.pem)
    return MemberContexts(credential, NODE, web=write_pair(tmp_path / "web", (*PUBLIC, NODE.dns_name)))


async def shown(contexts: MemberContexts, name: str | None, version: ssl.TLSVersion) -> str:
    """The serial of the certificate that a client gets that asks for this name, or for none."""
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=contexts.api.listening)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.minimum_version = client.maximum_version = version
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname=name or "127.0.0.1"
        )
        der = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.close()
        await writer.wait_closed()
    return serial_hex(x509.load_der_x509_certificate(der))


def serial_of(path: Path) -> str:
    return serial_hex(x509.load_pem_x509_certificates(path.read_bytes())[0])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda v: v.name)
async def test_only_who_asks_for_one_of_its_names_gets_it(
    contexts: MemberContexts, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    for_browsers = serial_of(tmp_path / "web" / "web.pem")
    own = serial_of(tmp_path / "credential.pem")
    for name in ("files.example.org", "FILES.example.org", "n1.files.example.org"):
        assert await shown(contexts, name, version) == for_browsers, name
    for other in (None, "localhost", NODE.dns_name, "example.org", "a.b.files.example.org", "other.org"):
        assert await shown(contexts, other, version) == own, other


async def test_browser_that_trusts_it_verifies_it_by_its_name(
    contexts: MemberContexts, tmp_path: Path
) -> None:
    browser = trusting(tmp_path / "web" / "web.pem")
    async with await asyncio.start_server(
        lambda _, w: w.close(), "127.0.0.1", 0, ssl=contexts.api.listening
    ) as server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=browser, server_hostname="files.example.org"
        )
        writer.close()
        await writer.wait_closed()


async def test_new_pair_is_used_after_a_reload_and_a_bad_one_is_not(
    contexts: MemberContexts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    version, web = ssl.TLSVersion.TLSv1_3, tmp_path / "web"
    files = write_pair(web, PUBLIC)
    second = serial_of(files.certificate)
    contexts.reload_all()
    assert await shown(contexts, "files.example.org", version) == second
    other = write_pair(tmp_path / "other", PUBLIC)
    files.certificate.write_bytes(other.certificate.read_bytes())  # and its key is not there yet
    contexts.reload_all()
    assert "cannot use the new certificate for browsers" in caplog.text
    assert await shown(contexts, "files.example.org", version) == second
    files.key.write_bytes(other.key.read_bytes())
    contexts.reload_all()
    assert await shown(contexts, "files.example.org", version) == serial_of(other.certificate)


def test_bad_pair_does_not_keep_the_cluster_s_own_certificate_from_being_used(
    contexts: MemberContexts, tmp_path: Path
) -> None:
    before = contexts.client()
    (tmp_path / "web" / "web.key").unlink()
    contexts.reload_all()
    assert contexts.client() is not before


def test_worker_that_starts_with_a_bad_pair_serves_without_it_until_that_is_mended(
    contexts: MemberContexts, tmp_path: Path
) -> None:
    files = write_pair(tmp_path / "web", PUBLIC)
    files.key.chmod(0o644)
    with pytest.raises(UnusableWebCertificate):
        MemberContexts(contexts.credential, NODE, web=files)
    worker = MemberContexts(contexts.credential, NODE, web=files, needs_web=False)
    assert worker.web is not None
    assert (worker.web.names, worker.web.not_after_ms) == (frozenset(), 0)
    assert worker.web.context_for("files.example.org") is None
    files.key.chmod(0o600)
    worker.reload_all()
    assert worker.web.context_for("files.example.org") is not None


def with_another_key(directory: Path) -> WebCertificateFiles:
    files = write_pair(directory / "one")
    return WebCertificateFiles(files.certificate, write_pair(directory / "two").key)


def without_certificate(directory: Path) -> WebCertificateFiles:
    return WebCertificateFiles(directory / "nowhere.pem", write_pair(directory).key)


def of_text(directory: Path) -> WebCertificateFiles:
    files = write_pair(directory)
    files.certificate.write_text("no certificate")
    return files


def with_open_key(directory: Path) -> WebCertificateFiles:
    files = write_pair(directory)
    files.key.chmod(0o640)
    return files


def without_key(directory: Path) -> WebCertificateFiles:
    files = write_pair(directory)
    files.key.unlink()
    return files


def for_an_address(directory: Path) -> WebCertificateFiles:
    return write_pair(directory, (), addresses=["192.0.2.1"])


def of_yesterday(directory: Path) -> WebCertificateFiles:
    return write_pair(directory, ends_in=-timedelta(hours=1))


BAD = {
    "mismatch": (with_another_key, "--web-key: ", "does not belong to"),
    "no-name": (lambda d: write_pair(d, ()), "--web-certificate: ", "is valid for no DNS name. Browsers"),
    "address": (
        for_an_address,
        "--web-certificate: ",
        "addresses only",
    ),
    "expired": (
        of_yesterday,
        "--web-certificate: ",
        "has expired on 2",
    ),
    "early": (lambda d: write_pair(d, begins_in=DAY / 2), "--web-certificate: ", "is not valid before 2"),
    "missing": (without_certificate, "--web-certificate: ", "No such file or directory. Check the path"),
    "garbage": (of_text, "--web-certificate: ", "contains no certificate"),
    "open-key": (with_open_key, "--web-key: ", "has mode 0640, which lets other users access it"),
    "missing-key": (without_key, "--web-key: ", "cannot be read: No such file"),
    "locked-key": (lambda d: write_pair(d, password=b"secret"), "--web-key: ", "PEM without a password"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_pair_is_refused_with_a_sentence_that_names_the_option(tmp_path: Path, case: str) -> None:
    make: Callable[[Path], WebCertificateFiles] = BAD[case][0]
    with pytest.raises(UnusableWebCertificate) as refused:
        loaded(make(tmp_path))
    assert isinstance(refused.value, FilestoreError)
    assert refused.value.details.startswith(BAD[case][1])
    assert BAD[case][2] in refused.value.details
    assert "PRIVATE" not in refused.value.details


def test_wildcard_stands_for_one_label(tmp_path: Path) -> None:
    web = loaded(write_pair(tmp_path, ("*.example.org",)))
    assert web.context_for("a.example.org") is web.context_for("B.EXAMPLE.ORG") is not None
    for other in ("example.org", "a.b.example.org", ".example.org", "*", "", "org"):
        assert web.context_for(other) is None, other


def test_its_end_is_told_of_the_one_in_use(tmp_path: Path) -> None:
    files = write_pair(tmp_path, ends_in=2 * DAY)
    web = loaded(files)
    ends_ms = web.not_after_ms
    assert 0 < ends_ms - now_ms() <= 2 * 86_400_000
    write_pair(tmp_path, ends_in=3 * DAY)
    assert web.not_after_ms == ends_ms
    web.reload()
    assert web.not_after_ms > ends_ms
