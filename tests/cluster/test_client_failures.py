"""The Python client: nodes that are not there, answers that get lost, many threads, and interruptions."""

import asyncio
import gc
import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from filestore_client import Client
from filestore_client.base import transport
from filestore_client.base.errors import NotFound, Unavailable
from tests.cluster.connections import async_client_of, client_of
from tests.cluster.harness import Cluster
from tests.cluster.lost_answers import LossyProxy
from tests.cluster.throttle import ThrottlingProxy

pytestmark = pytest.mark.usefixtures("own_memory")

MIB = 1 << 20
DEAD = "https://127.0.0.1:1"
THREADS = 8


def unique(prefix: str = "f") -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


@contextmanager
def silent_url() -> Iterator[str]:
    """Where connections are taken and nobody says anything, as at a process that stands still."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listening:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def lossy(cluster: Cluster) -> Iterator[tuple[LossyProxy, Client]]:
    """A proxy that can lose answers, and a client that has a connection through it."""
    with LossyProxy(cluster.nodes[0].api_port) as way, client_of(cluster, way.url) as client:
        client.whoami()
        yield way, client


def test_node_that_is_not_there_is_passed_over(cluster: Cluster, tmp_path: Path) -> None:
    content = os.urandom(20 * MIB)
    (tmp_path / "lab.bin").write_bytes(content)
    with client_of(cluster, DEAD, *(node.url for node in cluster.nodes)) as client:
        bucket = client.buckets.create(unique())  # nothing was sent before: so POST too
        record = client.files.upload(tmp_path / "lab.bin", bucket_id=bucket.bucket_id)
        client.files.download(record.file_uuid, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == content
        with client.files.open(record.file_uuid) as file:
            assert file.read(100) == content[:100]


def test_node_that_stands_still_is_passed_over(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_S", 0.5)
    with silent_url() as url, client_of(cluster, url, cluster.nodes[0].url) as client:
        assert client.whoami().user_id == "admin"
    with silent_url() as url, client_of(cluster, url, cluster.nodes[0].url) as client:
        assert client.buckets.create(unique()).file_count == 0


async def test_requests_at_once_leave_a_failed_node_together(cluster: Cluster) -> None:
    """Each of them turns away from it once, and none back to it."""
    for count in (2, 3, 8):
        async with async_client_of(cluster, DEAD, cluster.nodes[0].url) as client:
            began_at = time.monotonic()
            await asyncio.gather(*(client.whoami() for _ in range(count)))
            assert client.transport.url == cluster.nodes[0].url
            assert time.monotonic() - began_at < 5


def test_nobody_there_is_told_at_the_deadline(cluster: Cluster) -> None:
    with client_of(cluster, DEAD, deadline_s=0.5) as client:
        with pytest.raises(Unavailable, match="No node answered") as told:
            client.whoami()
        assert not told.value.is_unknown


def test_post_without_an_answer_is_not_repeated(cluster: Cluster) -> None:
    name = unique("bucket")
    with lossy(cluster) as (way, client):
        record = client.files.upload(b"x", filename="shared.bin")
        way.losses = 1
        with pytest.raises(Unavailable, match="not known") as told:
            client.buckets.create(name)
        assert told.value.is_unknown
        assert [bucket.name for bucket in client.buckets.list()].count(name) == 1
        way.losses = 1
        with pytest.raises(Unavailable) as told:
            client.shares.create(record.file_uuid)
        assert told.value.is_unknown
        assert len(list(client.shares.list(record.file_uuid))) == 1
        assert way.lost == 2


def test_delete_whose_answer_was_lost_is_done(cluster: Cluster) -> None:
    with lossy(cluster) as (way, client):
        bucket = client.buckets.create(unique())
        record = client.files.upload(b"x", filename="deleted.bin")
        token = client.join_tokens.create(ttl_seconds=600)
        cluster.remember(token.token)
        for delete, name in (
            (client.buckets.delete, bucket.bucket_id),
            (client.files.delete, record.file_uuid),
            (client.join_tokens.delete, token.token_id),
        ):
            way.losses = 1
            delete(name)
            with pytest.raises(NotFound):
                client.buckets.get(bucket.bucket_id)
        assert way.lost == 3
        with pytest.raises(NotFound):
            client.buckets.delete(bucket.bucket_id)


def test_delete_that_answers_with_a_record_tells_that_the_record_was_lost(cluster: Cluster) -> None:
    with lossy(cluster) as (way, client):
        bucket = client.buckets.create(unique())
        way.losses = 1
        with pytest.raises(Unavailable, match="request succeeded") as told:
            client.call("DELETE", f"/api/v1/buckets/{bucket.bucket_id}", dict[str, object])
        assert told.value.is_unknown


def test_change_whose_answer_was_lost_is_made_once_or_told(cluster: Cluster) -> None:
    with lossy(cluster) as (way, client):
        bucket = client.buckets.create(unique())
        way.losses = 1
        assert client.buckets.update(bucket.bucket_id, quota_bytes=5).quota_bytes == 5
        seen = client.buckets.get(bucket.bucket_id)
        way.losses = 1
        with pytest.raises(Unavailable) as told:  # the condition does not hold any more, perhaps by ourselves
            client.buckets.update(bucket.bucket_id, quota_bytes=6, if_match=seen.etag)
        assert told.value.is_unknown
        assert client.buckets.get(bucket.bucket_id).quota_bytes == 6


def test_upload_whose_answers_are_lost_is_one_file(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / f"{unique()}.bin"
    path.write_bytes(os.urandom(MIB))
    with lossy(cluster) as (way, client):
        for losses in (1, 2, 3):
            way.losses = losses
            record = client.files.upload(path, only_url=True)
            assert record.blob_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert way.lost == 6
        available = list(client.backups.list(filename=path.name, status="available"))
        assert len(available) == 3


def test_client_serves_several_threads_at_once(cluster: Cluster) -> None:
    contents = [os.urandom(MIB + number) for number in range(THREADS)]
    with client_of(cluster) as client:
        bucket = client.buckets.create(unique())

        def work(content: bytes) -> list[str]:
            record = client.files.upload(content, filename=unique(), bucket_id=bucket.bucket_id)
            assert b"".join(client.files.read(record.file_uuid)) == content
            with client.files.open(record.file_uuid) as file:
                assert file.read() == content
            client.whoami()
            return [file.file_uuid for file in client.files.in_bucket(bucket.bucket_id, limit="3")]

        with ThreadPoolExecutor(THREADS) as threads:
            listed = list(threads.map(work, contents))
        assert max(map(len, listed)) == THREADS
        assert len(list(client.files.in_bucket(bucket.bucket_id))) == THREADS


# A program, since who is interrupted is the main thread: its second argument is the way that is too slow.
INTERRUPTED = """
import os, signal, sys, threading, time
from filestore_client import Client
os.environ["FILESTORE_URL"] = sys.argv[1]
with Client.from_environment() as client:
    begun = threading.Event()
    def interrupt():
        begun.wait()
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
    def parts():
        while True:
            begun.set()
            yield bytes(1 << 20)
    try:
        client.files.upload(parts(), filename=sys.argv[2])
    except KeyboardInterrupt:
        pass
    else:
        sys.exit("it was not interrupted")
    assert client.whoami().user_id == "admin"
    assert [*client.files.list("backup", filename=sys.argv[2])] == [], "the upload goes on"
    begun.clear()
    threading.Thread(target=interrupt).start()
    writer = client.files.open(sys.argv[2], "wb")
    try:
        while True:
            if writer.tell() > 14 << 20:  # the next ones wait for the upload
                begun.set()
            writer.write(bytes(1 << 20))
    except KeyboardInterrupt:
        writer.abort()
    assert client.files.upload(b"after", filename="after.bin").size_bytes == 5
"""


def outcome_of(program: str, cluster: Cluster, *arguments: str) -> tuple[int, list[str]]:
    """Its exit code, and what it says. Whatever it would only warn of ends it, or is said."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program, *arguments],
        env=cluster.command_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
        # A shell makes what it starts in the background ignore SIGINT, and tests may run there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # asyncio's development mode also says what took long, which tells of the machine.
    return done.returncode, [line for line in done.stdout.splitlines() if not line.startswith("Executing ")]


def test_client_is_of_use_after_an_interrupt(cluster: Cluster) -> None:
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=4 * MIB) as way:
        assert outcome_of(INTERRUPTED, cluster, way.url, unique()) == (0, [])


# Another thread takes the signal, as if it came just before the main thread began to wait.
TAKEN_BY_ANOTHER_THREAD = """
import asyncio, os, signal, sys, threading
from filestore_client.loop_thread import LoopThread
async def nothing():
    pass
begun = threading.Event()
async def never_ends():
    begun.set()
    await asyncio.Event().wait()
loop = LoopThread(nothing, never_ends if sys.argv[1] == "close" else nothing)
def interrupt():
    begun.wait()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
try:
    loop.close() if sys.argv[1] == "close" else loop.run(never_ends())
except KeyboardInterrupt:
    if sys.argv[1] == "close":
        os._exit(0)  # else what never ends is waited for again
    sys.exit(0)
"""


@pytest.mark.parametrize("act", ["run", "close"])
def test_interrupt_that_another_thread_takes_ends_the_wait(cluster: Cluster, act: str) -> None:
    assert outcome_of(TAKEN_BY_ANOTHER_THREAD, cluster, act) == (0, [])


UNCLOSED = """
import sys
from filestore_client import Client
client = Client.from_environment()
files = client.files.list()
next(files, None)
record = client.files.upload(b"content", filename="unclosed.bin")
reader = client.files.open(record.file_uuid)
assert reader.read(3) == b"con"
writer = client.files.open("never.bin", "wb")
writer.write(b"never")
if sys.argv[1] == "collected":
    parts = client.files.read(record.file_uuid)
    next(parts)
    del client, files, parts
    assert reader.read(3) == b"ten"
    del reader, writer
"""


@pytest.mark.parametrize("how", ["at the end", "collected"])
def test_client_that_nobody_closed_ends_silently(cluster: Cluster, how: str) -> None:
    assert outcome_of(UNCLOSED, cluster, how) == (0, [])
    assert cluster.get("/backups?filename=never.bin&status=available").json["backups"] == []


def test_client_is_closed_once_and_its_thread_ends(cluster: Cluster) -> None:
    before = threading.active_count()
    client = client_of(cluster)
    assert threading.active_count() == before + 1
    client.whoami()
    files = client.files.list()
    next(files, None)
    client.close()
    client.close()
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        client.whoami()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del files, client
        gc.collect()


def test_call_that_waits_while_the_client_is_closed_is_told(cluster: Cluster) -> None:
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=8 * MIB) as way:
        client = client_of(cluster, way.url)
        client.whoami()
        failures: list[BaseException] = []

        def send() -> None:
            try:
                client.files.upload(bytes(64 * MIB), filename="closed.bin", only_url=True)
            except RuntimeError as error:
                failures.append(error)

        sending = threading.Thread(target=send)
        sending.start()
        while way.passed_bytes < 2 * MIB:
            time.sleep(0.01)
        client.close()
        sending.join(20)
        assert not sending.is_alive()
    assert [str(error) for error in failures] == ["the client was closed in the meantime"]


async def test_client_cannot_wait_for_itself(cluster: Cluster) -> None:
    client = client_of(cluster)
    try:
        running = asyncio.wrap_future(ThreadPoolExecutor(1).submit(client.whoami))
        assert (await running).user_id == "admin"
    finally:
        client.close()
