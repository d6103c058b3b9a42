"""Nodes of three worker processes: one port, one data directory, and nothing that a client could tell."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from metadata.model.rules import RULES
from metadata.protocol.calls import HeartbeatCall
from metadata.rpc.client import MetadataClient
from metadata.rpc.tls_contexts import MemberContexts
from node.base.config import NodeFiles
from node.membership.join import join
from node.membership.renewal import renew
from node.peer.rate_budget import RATE_MAX
from node.uploads.progress import SMALL_BYTES
from tests.cluster.harness import Answer, Cluster
from tests.cluster.part_steps import Parts, check_content
from tests.cluster.worker_processes import (
    Ending,
    connect,
    counted,
    created_for,
    pids_of,
    server_of,
)
from tests.web_certificates import write_pair

WORKERS = 3
PUBLIC_NAME = "files.example.org"
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
CONTENT = os.urandom(600_000)


@pytest.fixture(scope="module")
def web_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the certificate for browsers lies that `crowd` has."""
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory, web_folder: Path) -> Iterator[Cluster]:
    """Two nodes of three workers each. Who ends something here starts it again."""
    directory = tmp_path_factory.mktemp("workers")
    web = write_pair(web_folder, (PUBLIC_NAME,))
    options = (
        *("--workers", str(WORKERS)),
        *("--web-certificate", str(web.certificate), "--web-key", str(web.key)),
    )
    with Cluster(directory, node_count=2, replicas=1, write_quorum=1, node_options=options) as started:
        for node in started.nodes:
            until_all_serve(started, node)
        yield started


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes of three workers each, which both must have what is acknowledged."""
    options = ("--workers", str(WORKERS))
    with Cluster(tmp_path, node_count=2, replicas=2, write_quorum=2, node_options=options) as started:
        for node in started.nodes:
            until_all_serve(started, node)
        yield started


def until_all_serve(cluster: Cluster, node: Member) -> None:
    """Every worker takes connections of clients."""
    cluster.wait_healthy()

    def all_serve() -> bool:
        with contextlib.suppress(AssertionError):
            for worker in range(WORKERS):
                connect(cluster, node, worker).close()
            return True
        return False

    wait_until(all_serve, what="every worker serving", timeout_s=60)


def send(
    cluster: Cluster,
    connection: http.client.HTTPSConnection,
    method: str,
    file_uuid: str,
    content: bytes = b"",
    **headers: str,
) -> Answer:
    """One request for an upload on a kept connection."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {**TUS, **named, "Authorization": f"Bearer {cluster.admin_token}"}
    connection.request(method, f"/api/v1/files/{file_uuid}/content", body=content, headers=sent)
    response = connection.getresponse()
    return Answer(
        response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    )


def begin(
    cluster: Cluster, node: Member, worker: int, file_uuid: str, content: bytes, length_bytes: int
) -> http.client.HTTPSConnection:
    """A PATCH from offset 0 of which only the beginning is sent; it holds the upload."""
    connection = connect(cluster, node, worker)
    connection.putrequest("PATCH", f"/api/v1/files/{file_uuid}/content")
    headers = {
        **TUS,
        "Upload-Offset": "0",
        "Content-Length": str(length_bytes),
        "Authorization": f"Bearer {cluster.admin_token}",
        "Expect": "100-continue",
    }
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.sock.recv(64).startswith(b"HTTP/1.1 100")
    connection.send(content)
    return connection


@pytest.mark.long
def test_connections_are_dealt_out_to_all_workers(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    connections = [connect(crowd, node) for _ in range(60)]
    assert {server_of(crowd, node, connection.sock) for connection in connections} == set(range(WORKERS))
    for connection in connections:
        connection.close()


@pytest.mark.long
def test_copies_of_an_upload_reach_the_worker_that_owns_it(pair: Cluster) -> None:
    holder, member = pair.nodes
    content = os.urandom(SMALL_BYTES + (2 << 20))
    for owner in range(WORKERS):
        file_uuid = created_for(pair, holder, owner, WORKERS, len(content))
        connection = connect(pair, holder)
        answer = send(pair, connection, "PATCH", file_uuid, content, Upload_Offset="0")
        assert answer.status == 204, (owner, answer.body)
        connection.close()
        assert pair.get(f"/files/{file_uuid}", node=member).body == content
    assert "lost a member of a chain" not in "".join(pair.logs().values())


def test_upload_goes_on_whichever_worker_of_whichever_node_a_piece_reaches(crowd: Cluster) -> None:
    holder, other = crowd.nodes
    for owner in range(WORKERS):
        file_uuid = created_for(crowd, holder, owner, WORKERS, len(CONTENT))
        offset = 0
        for node, worker in ((holder, 0), (holder, 1), (holder, 2), (other, 0), (other, 1), (other, 2)):
            connection = connect(crowd, node, worker)
            head = send(crowd, connection, "HEAD", file_uuid)
            assert (head.status, head.headers["upload-offset"]) == (200, str(offset)), (owner, worker)
            piece = CONTENT[offset : offset + 100_000]
            answer = send(crowd, connection, "PATCH", file_uuid, piece, Upload_Offset=str(offset))
            assert answer.status == 204, (owner, node.id, worker, answer.body)
            offset += len(piece)
            connection.close()
        assert crowd.get(f"/files/{file_uuid}", node=other).body == CONTENT


def test_parts_are_put_together_whichever_workers_have_them(crowd: Cluster) -> None:
    parts = Parts(crowd, [os.urandom(600_000) for _ in range(5)])
    assert [parts.send(number, node=crowd.nodes[number % 2]) for number in range(5)] == [204] * 5
    answers = [parts.finish(node=node) for node in crowd.nodes * 3]
    assert [answer.status for answer in answers] == [201] * 6, answers
    assert len({answer.json["file_uuid"] for answer in answers}) == 1
    check_content(crowd, answers[0].json["file_uuid"], parts.content)


def test_second_writer_is_refused_at_another_worker_and_goes_on_when_the_first_is_lost(
    crowd: Cluster,
) -> None:
    node = crowd.nodes[0]
    file_uuid = created_for(crowd, node, 1, WORKERS, 10)
    second = connect(crowd, node, 2)  # which takes many tries: the first must not be silent meanwhile
    first = begin(crowd, node, 0, file_uuid, b"abcd", 10)
    refused = send(crowd, second, "PATCH", file_uuid, b"x" * 10, Upload_Offset="0")
    assert (refused.status, refused.json["code"]) == (423, "upload_locked")

    def shown() -> int:
        nodes = crowd.get("/cluster/status").json["nodes"]
        return int(next(entry["uploads"] for entry in nodes if entry["id"] == node.id))

    wait_until(lambda: shown() == 1, what="the upload in the status", timeout_s=20)
    first.sock.shutdown(socket.SHUT_RDWR)
    first.close()
    assert send(crowd, second, "HEAD", file_uuid).headers["upload-offset"] == "4"
    assert send(crowd, second, "PATCH", file_uuid, b"efghij", Upload_Offset="4").status == 204
    second.close()
    assert crowd.get(f"/files/{file_uuid}").body == b"abcdefghij"


def test_requests_to_all_workers_are_counted_once_each(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    file_uuid = created_for(crowd, node, 2, WORKERS, 10)
    pattern = r'filestore_http_requests_total\{method="HEAD",route="[^"]*/content",status="200"\}'
    before = counted(crowd, node, pattern)
    requests = 90
    servers = set()
    for _ in range(requests // 3):
        connection = connect(crowd, node)
        servers.add(server_of(crowd, node, connection.sock))
        for _ in range(3):
            assert send(crowd, connection, "HEAD", file_uuid).status == 200
        connection.close()
    assert servers == set(range(WORKERS))
    wait_until(
        lambda: counted(crowd, node, pattern) == before + requests, what="the sum", timeout_s=10
    )  # a request is counted when its answer is out
    for _ in range(10):  # whichever worker is scraped
        assert counted(crowd, node, pattern) == before + requests
    wait_until(lambda: counted(crowd, node, "filestore_workers ") == WORKERS, what="all answer", timeout_s=30)
    assert counted(crowd, node, "filestore_disk_size_bytes ") == os.statvfs(crowd.data(node)).f_blocks * (
        os.statvfs(crowd.data(node)).f_frsize
    )


def test_bytes_of_clients_at_any_worker_slow_what_replicas_cost(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    file_uuid = crowd.store(CONTENT)

    def rate() -> float:
        return counted(crowd, node, "filestore_custody_rate ")

    wait_until(lambda: rate() == RATE_MAX, what="quiet", timeout_s=60)
    connection = connect(crowd, node, WORKERS - 1)
    authorization = {"Authorization": f"Bearer {crowd.admin_token}"}

    def slows() -> bool:
        for _ in range(10):
            connection.request("GET", f"/api/v1/files/{file_uuid}", headers=authorization)
            assert connection.getresponse().read() == CONTENT
        return rate() < RATE_MAX

    with contextlib.closing(connection):
        wait_until(slows, what="the budget to give way", timeout_s=60)


def test_killed_worker_comes_back_and_its_upload_goes_on_where_it_stood(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    file_uuid = created_for(crowd, node, 1, WORKERS, len(CONTENT))
    connection = connect(crowd, node, 0)
    assert send(crowd, connection, "PATCH", file_uuid, CONTENT[:1000], Upload_Offset="0").status == 204
    sums = r"filestore_http_requests_total\{"
    before = counted(crowd, node, sums)
    restarts = counted(crowd, node, "filestore_worker_restarts_total ")
    leftover = crowd.data(node) / "uploads" / "incoming-w1-half"
    of_another = crowd.data(node) / "uploads" / "incoming-w2-half"
    for path in (leftover, of_another):
        path.write_bytes(b"abcd")
    victim = pids_of(crowd, node)[1]
    ending = Ending([victim])
    os.kill(victim, signal.SIGKILL)
    ending.wait(10)
    connection.close()

    def goes_on() -> bool:  # the request waits for the worker; on a busy machine not for long enough
        again = connect(crowd, node, 0)
        answer = send(crowd, again, "PATCH", file_uuid, CONTENT[1000:], Upload_Offset="1000")
        again.close()
        assert answer.status in (204, 503), answer.body
        return answer.status == 204

    wait_until(goes_on, what="the rest of the upload taken", timeout_s=60)
    assert crowd.get(f"/files/{file_uuid}").body == CONTENT
    assert counted(crowd, node, "filestore_worker_restarts_total ") == restarts + 1
    assert counted(crowd, node, sums) > before  # what it had counted is not lost
    assert of_another.exists()
    assert not leftover.exists()
    of_another.unlink()
    until_all_serve(crowd, node)


def test_worker_that_is_told_to_end_answers_first_and_is_replaced(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    file_uuid = created_for(crowd, node, 2, WORKERS, 10)
    connection = begin(crowd, node, 1, file_uuid, b"abcd", 10)
    told = pids_of(crowd, node)[1]
    ending = Ending([told])
    os.kill(told, signal.SIGTERM)
    connection.send(b"efghij")
    assert connection.getresponse().status == 204
    connection.close()
    ending.wait(20)
    until_all_serve(crowd, node)
    assert pids_of(crowd, node)[1] != told


async def test_renewed_certificate_reaches_every_worker(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    files = NodeFiles(crowd.data(node))
    config = files.read_config()
    identity = config.identity
    contexts = MemberContexts(files.credential(), identity)
    before = await asyncio.to_thread(shown_certificates, crowd, node)
    metadata = MetadataClient(identity, config.coordinators, contexts.client)
    running = asyncio.create_task(metadata.run())
    try:
        await renew(metadata, contexts, identity, config.address)
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert await asyncio.to_thread(shown_certificates, crowd, node) == before
    good = files.credential_path.read_bytes()
    workers = pids_of(crowd, node)
    torn = good[: len(good) // 2]  # as a copy that is under way leaves it
    foreign = NodeFiles(crowd.data(crowd.nodes[1])).credential_path.read_bytes()
    for round_number, useless in enumerate([torn, foreign], start=1):
        files.credential_path.write_bytes(useless)
        os.kill(crowd.pid(node), signal.SIGHUP)
        await asyncio.to_thread(wait_until_told, crowd, node, round_number * len(workers))
        assert await asyncio.to_thread(shown_certificates, crowd, node) == before
    files.credential_path.write_bytes(good)
    os.kill(crowd.pid(node), signal.SIGHUP)

    def is_new_everywhere() -> bool:
        return not shown_certificates(crowd, node) & before

    await asyncio.to_thread(
        lambda: wait_until(is_new_everywhere, what="the new certificate everywhere", timeout_s=20)
    )
    assert len(await asyncio.to_thread(shown_certificates, crowd, node)) == 1
    assert pids_of(crowd, node) == workers


def test_renewed_certificate_for_browsers_reaches_every_worker(crowd: Cluster, web_folder: Path) -> None:
    node = crowd.nodes[0]
    before = shown_to_browsers(node)
    assert len(before) == 1
    write_pair(web_folder, (PUBLIC_NAME,))
    os.kill(crowd.pid(node), signal.SIGHUP)
    wait_until(lambda: not shown_to_browsers(node) & before, what="the new one everywhere", timeout_s=20)
    assert len(shown_to_browsers(node)) == 1


def shown_to_browsers(node: Member) -> set[bytes]:
    """What is shown to so many connections that every worker has some, as good as certainly."""
    browser = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    browser.check_hostname, browser.verify_mode = False, ssl.CERT_NONE
    shown: set[bytes] = set()
    for _ in range(30):
        plain = socket.create_connection(("127.0.0.1", node.api_port), timeout=10)
        with browser.wrap_socket(plain, server_hostname=PUBLIC_NAME) as connection:
            shown.add(connection.getpeercert(binary_form=True) or b"")
    return shown


def wait_until_told(crowd: Cluster, node: Member, times: int) -> None:
    """Each process has said that the certificate on disk is of no use, and no more than that."""
    told = '"message": "cannot use the certificate on disk"'
    wait_until(lambda: crowd.logs()[node.id].count(told) == times, what="their word", timeout_s=20)
    assert "Traceback" not in crowd.logs()[node.id]


def shown_certificates(cluster: Cluster, node: Member) -> set[bytes]:
    """What all workers show, each asked once."""
    shown: set[bytes] = set()
    for worker in range(WORKERS):
        connection = connect(cluster, node, worker)
        assert isinstance(connection.sock, ssl.SSLSocket)
        shown.add(connection.sock.getpeercert(binary_form=True) or b"")
        connection.close()
    return shown


@pytest.mark.long
def test_worker_that_hangs_is_replaced(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    hanging = pids_of(crowd, node)[1]
    ending = Ending([hanging])
    os.kill(hanging, signal.SIGSTOP)
    ending.wait(90)
    until_all_serve(crowd, node)


@pytest.mark.long
def test_workers_end_with_the_first_and_the_node_starts_again(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    file_uuid = created_for(crowd, node, 2, WORKERS, 10)
    first = begin(crowd, node, 1, file_uuid, b"abcd", 10)  # still runs when the node is started again
    children = [pid for number, pid in pids_of(crowd, node).items() if number]
    ending = Ending(children)
    crowd.kill(node)
    crowd.restart(node)
    crowd.wait_healthy()  # after its earlier workers, or it would have found the directory in use
    ending.wait(0)
    first.close()
    until_all_serve(crowd, node)
    connection = connect(crowd, node, 0)
    offset = int(send(crowd, connection, "HEAD", file_uuid).headers["upload-offset"])
    assert offset in (0, 4)
    content = b"abcdefghij"[offset:]
    answer = send(crowd, connection, "PATCH", file_uuid, content, Upload_Offset=str(offset))
    assert answer.status == 204, answer.body
    connection.close()
    assert crowd.get(f"/files/{file_uuid}").body == b"abcdefghij"


@pytest.mark.long
def test_node_that_is_told_to_end_lets_requests_at_all_workers_end(crowd: Cluster) -> None:
    node = crowd.nodes[0]
    uuids = [created_for(crowd, node, owner, WORKERS, 10) for owner in (0, 1, 2)]
    # Each through another worker than its owner.
    begun = [begin(crowd, node, (at + 1) % WORKERS, file, b"abcd", 10) for at, file in enumerate(uuids)]
    ending = Ending(list(pids_of(crowd, node).values()))
    ender = threading.Thread(target=crowd.terminate, args=(node,))
    ender.start()
    wait_until(lambda: not takes_connections(node), what="a closed port", timeout_s=20)
    for connection in begun:
        connection.send(b"efghij")
        assert connection.getresponse().status == 204
        connection.close()
    ender.join(30)
    ending.wait(10)
    assert not any("killing a worker that does not end" in text for text in crowd.logs().values())
    refuse_a_stranger(crowd, node)
    crowd.restart(node)
    until_all_serve(crowd, node)
    for file_uuid in uuids:
        assert crowd.get(f"/files/{file_uuid}", node=node).body == b"abcdefghij"


def takes_connections(node: Member) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", node.api_port), timeout=5):
        return True
    return False


def refuse_a_stranger(cluster: Cluster, node: Member) -> None:
    """Another process that would share the port gets none of the node's clients: the node does not start."""
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", node.api_port))
        stranger.listen()
        data = str(cluster.data(node))
        refused = cluster.filestore("node", "run", "--data", data, FILESTORE_WORKERS=str(WORKERS))
    assert refused.returncode == 1
    assert b"in use" in refused.stderr


def test_audit_log_holds_a_whole_line_for_every_act_at_every_worker(crowd: Cluster) -> None:
    node, acts = crowd.nodes[1], 20
    connections = [connect(crowd, node, at % WORKERS) for at in range(12)]

    def act(connection: http.client.HTTPSConnection) -> None:
        headers = {"Authorization": f"Bearer {crowd.admin_token}"}
        for _ in range(acts):
            connection.request("DELETE", f"/api/v1/cluster/join-tokens/{uuid.uuid4()}", headers=headers)
            assert connection.getresponse().read()
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(len(connections)) as pool:
        for done in [pool.submit(act, connection) for connection in connections]:
            done.result()
    lines = (crowd.data(node) / "audit.log").read_text().splitlines()
    recorded = [json.loads(line) for line in lines]
    assert len({line["object"] for line in recorded}) == acts * len(connections) == len(recorded)


async def test_heartbeat_of_another_worker_says_nothing_of_the_node(crowd: Cluster, tmp_path: Path) -> None:
    """Last here: the node that is made heard has no process."""
    data = tmp_path / "spare"
    await join(
        data,
        token=crowd.join_token(node_id="spare"),
        node_id="spare",
        coordinator_url=crowd.coordinators[0].url,
        address="127.0.0.1",
        api_port=1,
        peer_port=2,
    )
    files = NodeFiles(data)
    config = files.read_config()
    identity = config.identity
    contexts = MemberContexts(files.credential(), identity)
    metadata = MetadataClient(identity, config.coordinators, contexts.client)
    running = asyncio.create_task(metadata.run())
    try:
        for is_primary, state in ((False, "joined"), (True, "healthy")):
            for coordinator in crowd.coordinators:
                call = HeartbeatCall(0, 0, 0, is_primary, rules=RULES)
                async with asyncio.timeout(20):
                    while await metadata.heartbeat(coordinator.id, call) is None:
                        await asyncio.sleep(0.05)
            answer = await asyncio.to_thread(crowd.get, "/cluster/status")
            assert {node["id"]: node["state"] for node in answer.json["nodes"]}["spare"] == state
    finally:
        running.cancel()
        await asyncio.wait([running])
