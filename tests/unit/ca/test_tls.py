"""TLS contexts, by real handshakes over loopback: who gets in, who does not, and certificates that change."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ca.certificates import Authority, LeafCertificate, new_intermediate, new_root, serial_hex
from ca.errors import Unauthorized
from ca.identity import Identity, Role
from ca.keys import key_from_pem, new_key
from ca.tls import (
    Credential,
    Peer,
    ReloadingContext,
    UnusableCredential,
    client_context,
    first_contact_context,
    peer_client_context,
    peer_identity,
    peer_server_context,
    server_context,
)
from runtime.wording import distrust

NODE = Identity("lab", Role.NODE, "n1")
PEER = Identity("lab", Role.COORDINATOR, "c1")
REFUSALS = (ssl.SSLError, ConnectionError, EOFError)
DEADLINE_S = 10

Run = Callable[[Coroutine[Any, Any, None]], None]


@dataclass
class Cluster:
    """An authority and a place for credentials; nothing listens yet."""

    authority: Authority
    directory: Path

    @property
    def root(self) -> str:
        return self.authority.root_pem

    def issue(self, identity: Identity, *, now: datetime | None = None) -> tuple[Path, LeafCertificate]:
        key = new_key()
        leaf = self.authority.sign_leaf(key.public_key(), identity, "127.0.0.1", now=now or datetime.now(UTC))
        path = self.directory / f"{identity.id}.pem"
        Credential(path, self.root).write(key, leaf.pem)
        return path, leaf


def _cluster(directory: Path, *, now: datetime | None = None) -> Cluster:
    now = now or datetime.now(UTC)
    directory.mkdir(exist_ok=True)
    root, root_key = new_root("lab", now=now)
    return Cluster(Authority(root, *new_intermediate(root, root_key, "lab", now=now)), directory)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return _cluster(tmp_path / "ours")


@pytest.fixture
def run(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Run]:
    """Runs a test's coroutine on either event loop, with a deadline."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        yield lambda work: runner.run(asyncio.wait_for(work, DEADLINE_S))


@asynccontextmanager
async def _listening(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A server that tells each client who it is, by what `peer_identity` says; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            who = peer_identity(writer.transport)
            writer.write(f"{who.identity.uri} {who.serial} {who.not_after_ms}\n".encode())
        except Unauthorized as error:
            writer.write(f"nobody: {error.reason}\n".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    asyncio.get_running_loop().set_exception_handler(_report_all_but_refusals)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def _report_all_but_refusals(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handshakes that fail are the point of these tests; the loop need not report them."""
    if not isinstance(context.get("exception"), REFUSALS):
        loop.default_exception_handler(context)


async def _ask(
    port: int, context: ssl.SSLContext, name: str | None = NODE.dns_name
) -> tuple[str, str, str | None]:
    """What the server answered, the serial of its certificate, and the protocol."""
    # An empty name sends no SNI and verifies the address literal instead, as dialling an address does.
    host = "127.0.0.1"
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name or host)
    try:
        tls = writer.get_extra_info("ssl_object")
        serial = serial_hex(x509.load_der_x509_certificate(tls.getpeercert(True)))
        line = await reader.readline()
        if not line:
            raise EOFError
        return line.decode().strip(), serial, tls.version()
    finally:
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    """No connection is left behind for the end of the loop to find."""
    writer.close()
    with suppress(*REFUSALS):
        await writer.wait_closed()


async def _refused(port: int, context: ssl.SSLContext, name: str | None = NODE.dns_name) -> None:
    with pytest.raises(REFUSALS):
        await _ask(port, context, name)


def test_client_verifies_by_name_and_by_address(cluster: Cluster, run: Run) -> None:
    path, leaf = cluster.issue(NODE)

    async def work() -> None:
        async with _listening(server_context(path)) as port:
            for name in (NODE.dns_name, None):
                said, serial, version = await _ask(port, client_context(cluster.root), name)
                assert (said, serial, version) == (
                    "nobody: the peer presented no certificate",
                    leaf.serial,
                    "TLSv1.3",
                )
            await _refused(port, client_context(cluster.root), "n1.coordinator.lab.internal")
            await _refused(port, client_context(cluster.root), "n1")  # the common name counts for nothing

    run(work())


def test_client_trusts_the_given_root_alone(
    cluster: Cluster, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = cluster.issue(NODE)
    other = _cluster(tmp_path / "other")
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(cluster.root)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))

    async def work() -> None:
        async with _listening(server_context(path)) as port:
            await _refused(port, client_context(other.root))
            assert (await _ask(port, client_context(other.root + cluster.root)))[1]

    run(work())


@pytest.mark.parametrize(
    ("made_days_ago", "name", "words"),
    [
        (-2, NODE.dns_name, "not valid yet"),
        (9, NODE.dns_name, "has expired"),
        (0, PEER.dns_name, "was not issued by this cluster"),
    ],
)
def test_client_is_told_why_a_server_is_not_trusted(
    cluster: Cluster, run: Run, made_days_ago: int, name: str, words: str
) -> None:
    now = datetime.now(UTC) - timedelta(days=made_days_ago)
    path, _ = cluster.issue(NODE, now=now)

    async def work() -> None:
        async with _listening(server_context(path)) as port:
            with pytest.raises(ssl.SSLCertVerificationError) as refused:
                await _ask(port, client_context(cluster.root), name)
            assert words in distrust(refused.value)

    run(work())


def test_first_contact_sees_any_server(cluster: Cluster, run: Run) -> None:
    path, leaf = cluster.issue(NODE)

    async def work() -> None:
        async with _listening(server_context(path)) as port:
            assert (await _ask(port, first_contact_context(), "anything"))[1] == leaf.serial

    run(work())


def test_client_port_speaks_tls_1_2_with_forward_secrecy_and_nothing_older(
    cluster: Cluster, run: Run
) -> None:
    path, _ = cluster.issue(NODE)
    modern, old, no_forward_secrecy = (client_context(cluster.root) for _ in range(3))
    modern.maximum_version = no_forward_secrecy.maximum_version = ssl.TLSVersion.TLSv1_2
    no_forward_secrecy.set_ciphers("AES256-GCM-SHA384")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")

    async def work() -> None:
        async with _listening(server_context(path)) as port:
            assert (await _ask(port, modern))[2] == "TLSv1.2"
            await _refused(port, old)
            await _refused(port, no_forward_secrecy)

    run(work())


def test_peers_know_each_other(cluster: Cluster, run: Run) -> None:
    path, leaf = cluster.issue(NODE)
    peer_path, peer_leaf = cluster.issue(PEER)

    async def work() -> None:
        async with _listening(peer_server_context(path, cluster.root)) as port:
            said, serial, version = await _ask(port, peer_client_context(peer_path, cluster.root))
            assert said == f"{PEER.uri} {peer_leaf.serial} {peer_leaf.not_after_ms}"
            assert (serial, version) == (leaf.serial, "TLSv1.3")

    run(work())


def test_peer_port_refuses_strangers(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    path, _ = cluster.issue(NODE)
    other = _cluster(tmp_path / "other")
    from_elsewhere, _ = other.issue(PEER)
    expired, _ = cluster.issue(
        Identity("lab", Role.NODE, "old"), now=datetime.now(UTC) - timedelta(days=7, seconds=5)
    )
    old_protocol = client_context(cluster.root)
    old_protocol.load_cert_chain(cluster.issue(PEER)[0])
    old_protocol.maximum_version = ssl.TLSVersion.TLSv1_2

    async def work() -> None:
        async with _listening(peer_server_context(path, cluster.root)) as port:
            await _refused(port, client_context(cluster.root))  # no certificate
            await _refused(port, peer_client_context(from_elsewhere, cluster.root))
            await _refused(port, peer_client_context(expired, cluster.root))
            await _refused(port, old_protocol)

    run(work())


def test_peer_client_refuses_a_server_of_another_name_or_root(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    path, _ = cluster.issue(NODE)
    mine, _ = cluster.issue(PEER)
    other = _cluster(tmp_path / "other")

    async def work() -> None:
        async with _listening(peer_server_context(path, cluster.root)) as port:
            await _refused(port, peer_client_context(mine, cluster.root), PEER.dns_name)
            await _refused(port, peer_client_context(mine, other.root))

    run(work())


def test_peer_port_hands_out_no_session_tickets(cluster: Cluster) -> None:
    """By memory BIOs, so that the client surely reads all that the server sends after the handshake."""
    path, _ = cluster.issue(NODE)
    peer_path, _ = cluster.issue(PEER)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = peer_server_context(path, cluster.root).wrap_bio(to_server, to_client, server_side=True)
    client = peer_client_context(peer_path, cluster.root).wrap_bio(
        to_client, to_server, server_hostname=NODE.dns_name
    )
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    with pytest.raises(ssl.SSLWantReadError):
        client.read(1)
    assert client.session is None or not client.session.has_ticket
    assert peer_identity(server).identity == PEER
    assert peer_identity(client).identity == NODE
    assert client.selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize("name", [NODE.dns_name, None], ids=["sni", "address"])
def test_reloaded_certificate_is_shown_from_the_next_handshake_on(
    cluster: Cluster, run: Run, name: str | None
) -> None:
    path, old = cluster.issue(NODE)
    reloading = ReloadingContext(lambda: server_context(path))

    async def work() -> None:
        async with _listening(reloading.listening) as port:
            assert (await _ask(port, client_context(cluster.root), name))[1] == old.serial
            for _ in range(2):
                _, new = cluster.issue(NODE)
                assert (await _ask(port, client_context(cluster.root), name))[1] != new.serial
                reloading.reload()
                assert (await _ask(port, client_context(cluster.root), name))[1] == new.serial

    run(work())


@pytest.mark.parametrize("name", [NODE.dns_name, None], ids=["sni", "address"])
def test_peer_port_demands_certificates_after_a_reload_too(
    cluster: Cluster, run: Run, tmp_path: Path, name: str | None
) -> None:
    path, _ = cluster.issue(NODE)
    peer_path, _ = cluster.issue(PEER)
    from_elsewhere, _ = _cluster(tmp_path / "other").issue(PEER)
    reloading = ReloadingContext(lambda: peer_server_context(path, cluster.root))

    async def work() -> None:
        async with _listening(reloading.listening) as port:
            _, new = cluster.issue(NODE)
            reloading.reload()
            said, serial, version = await _ask(port, peer_client_context(peer_path, cluster.root), name)
            assert said.startswith(PEER.uri)
            assert (serial, version) == (new.serial, "TLSv1.3")
            await _refused(port, client_context(cluster.root), name)
            await _refused(port, peer_client_context(from_elsewhere, cluster.root), name)

    run(work())


def test_reload_changes_the_roots_that_peers_are_verified_by(
    cluster: Cluster, run: Run, tmp_path: Path
) -> None:
    """CA rotation: the new bundle counts at once, and so does dropping the old root."""
    path, _ = cluster.issue(NODE)
    other = _cluster(tmp_path / "other")
    mine, _ = cluster.issue(PEER)
    theirs, _ = other.issue(PEER)
    trusted = [cluster.root]
    reloading = ReloadingContext(lambda: peer_server_context(path, trusted[0]))

    async def work() -> None:
        async with _listening(reloading.listening) as port:
            await _refused(port, peer_client_context(theirs, cluster.root))
            trusted[0] = cluster.root + other.root
            reloading.reload()
            for client in (mine, theirs):
                assert (await _ask(port, peer_client_context(client, cluster.root)))[0].startswith(PEER.uri)
            trusted[0] = other.root
            reloading.reload()
            await _refused(port, peer_client_context(mine, cluster.root))
            assert (await _ask(port, peer_client_context(theirs, cluster.root)))[0].startswith(PEER.uri)

    run(work())


def test_failed_reload_says_why_and_keeps_the_old_certificate(cluster: Cluster, run: Run) -> None:
    path, old = cluster.issue(NODE)
    whole = path.read_bytes()
    other_path, _ = cluster.issue(PEER)
    key_end = whole.index(b"-----END PRIVATE KEY-----") + 26
    torn = whole[:key_end] + other_path.read_bytes()[key_end:]
    reloading = ReloadingContext(lambda: server_context(path))

    async def work() -> None:
        async with _listening(reloading.listening) as port:
            for bad in (torn, b"", whole[: key_end + 40], whole[key_end:]):
                path.write_bytes(bad)
                with pytest.raises(UnusableCredential, match=r"n1\.pem"):
                    reloading.reload()
                assert (await _ask(port, client_context(cluster.root)))[1] == old.serial
            path.unlink()
            with pytest.raises(UnusableCredential, match="No such file"):
                reloading.reload()
            assert (await _ask(port, client_context(cluster.root)))[1] == old.serial

    run(work())


def test_encrypted_key_is_refused_without_asking_the_terminal(cluster: Cluster) -> None:
    path, _ = cluster.issue(NODE)
    whole = path.read_bytes()
    encrypted = key_from_pem(whole).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pass"),
    )
    path.write_bytes(encrypted + whole[whole.index(b"-----BEGIN CERTIFICATE") :])
    with pytest.raises(UnusableCredential, match="encrypted"):
        server_context(path)


def test_strict_mode_is_set_wherever_someone_is_verified(cluster: Cluster) -> None:
    path, _ = cluster.issue(NODE)
    contexts = (
        client_context(cluster.root),
        peer_client_context(path, cluster.root),
        peer_server_context(path, cluster.root),
    )
    for context in contexts:
        assert context.verify_flags & ssl.VERIFY_X509_STRICT
        assert context.verify_mode is ssl.CERT_REQUIRED
    assert contexts[0].check_hostname
    assert contexts[1].check_hostname
    assert [len(context.get_ca_certs()) for context in contexts] == [1, 1, 1]


def test_nobody_is_behind_a_closed_or_plain_connection(run: Run) -> None:
    with pytest.raises(Unauthorized):
        peer_identity(None)
    idle = first_contact_context().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
    with pytest.raises(Unauthorized, match="A valid credential"):
        peer_identity(idle)

    async def work() -> None:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        with pytest.raises(Unauthorized):
            peer_identity(writer.transport)
        await _close(writer)
        server.close()
        await server.wait_closed()

    run(work())


def test_aiohttp_server_and_client_work_with_these_contexts(cluster: Cluster, run: Run) -> None:
    path, _ = cluster.issue(NODE)
    peer_path, peer_leaf = cluster.issue(PEER)
    seen: list[Peer] = []

    async def hello(request: web.Request) -> web.Response:
        seen.append(peer_identity(request.transport))
        return web.Response()

    async def work() -> None:
        application = web.Application()
        application.router.add_get("/", hello)
        runner = web.AppRunner(application)
        await runner.setup()
        reloading = ReloadingContext(lambda: peer_server_context(path, cluster.root))
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=reloading.listening)
        await site.start()
        reloading.reload()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        context = peer_client_context(peer_path, cluster.root)
        async with (
            ClientSession() as session,
            session.get(url, ssl=context, server_hostname=NODE.dns_name) as response,
        ):
            assert response.status == 200
        await runner.cleanup()
        assert seen == [Peer(PEER, peer_leaf.serial, peer_leaf.not_before_ms, peer_leaf.not_after_ms)]

    run(work())


def test_other_blocks_in_a_root_bundle_are_trusted_by_nobody(cluster: Cluster, tmp_path: Path) -> None:
    other = _cluster(tmp_path / "other").root.replace("CERTIFICATE", "TRUSTED CERTIFICATE")
    assert len(client_context(cluster.root + other).get_ca_certs()) == 1
