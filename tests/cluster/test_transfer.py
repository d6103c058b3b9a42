"""Big files up and down on a real cluster: curl, a stock tus client, ranges from every node, memory.

The default suite moves 256 MiB; FILESTORE_TEST_GIB=1 moves the full gibibyte (or more).
"""

import hashlib
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError

from tests.cluster.harness import Cluster, forget_peak_memory, peak_memory_bytes, random_file
from tests.cluster.throttle import ThrottlingProxy

FULL_BYTES = int(os.environ.get("FILESTORE_TEST_GIB", "0")) << 30
BIG_BYTES = FULL_BYTES or 256 << 20
TUS_BYTES = FULL_BYTES or 96 << 20
TUS_PIECE_BYTES = 8 << 20
RANGES = 100
ADDED_MEMORY_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class BigFile:
    path: Path
    file_uuid: str
    sha256: str
    size_bytes: int
    memory_bytes: dict[str, int] = field(default_factory=dict)  # of each node, before


@pytest.fixture(scope="module")
def big_file(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BigFile]:
    """Uploaded by `curl -T`."""
    path = tmp_path_factory.mktemp("big") / "big.gns3p"
    sha256 = random_file(path, BIG_BYTES)
    for node in cluster.nodes:
        forget_peak_memory(cluster.pid(node))
    before = {node.id: peak_memory_bytes(cluster.pid(node)) for node in cluster.nodes}
    created = cluster.create("big.gns3p", size_bytes=BIG_BYTES)
    done = cluster.curl("-T", str(path), created["upload_url"], timeout_s=100)
    assert done.returncode == 0, done.stderr + done.stdout
    record = cluster.get(f"/project-files/{created['file_uuid']}").json
    assert (record["status"], record["blob_sha256"], record["size_bytes"]) == (
        "available",
        sha256,
        BIG_BYTES,
    )
    yield BigFile(path, created["file_uuid"], sha256, BIG_BYTES, before)
    path.unlink()


def check_whole(cluster: Cluster, stored: BigFile, target: Path) -> None:
    """Every node gives the same bytes, and names them by their sha256."""
    for node in cluster.nodes:
        done = cluster.curl("-o", str(target), "-D", "-", f"{node.url}/api/v1/files/{stored.file_uuid}")
        assert done.returncode == 0, done.stderr
        assert f'etag: "{stored.sha256}"' in done.stdout.decode().lower()
        with target.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == stored.sha256, node.id


def check_ranges(cluster: Cluster, stored: BigFile) -> None:
    """Every node gives any part of the bytes."""
    dice = random.Random(20261120)
    with stored.path.open("rb") as file:
        for node in cluster.nodes:
            for _ in range(RANGES):
                start = dice.randrange(stored.size_bytes)
                stop = min(stored.size_bytes, start + dice.randrange(1, 1 << 20))
                file.seek(start)
                span = {"Range": f"bytes={start}-{stop - 1}"}
                answer = cluster.get(f"/files/{stored.file_uuid}", node=node, headers=span)
                assert answer.status == 206
                assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{stored.size_bytes}"
                assert answer.body == file.read(stop - start)


def test_whole_file_comes_back_from_every_node(cluster: Cluster, big_file: BigFile, tmp_path: Path) -> None:
    check_whole(cluster, big_file, tmp_path / "copy")


def test_random_ranges_are_right_on_every_node(cluster: Cluster, big_file: BigFile) -> None:
    check_ranges(cluster, big_file)


def test_node_memory_stays_small_while_a_big_file_goes_up_and_down(
    cluster: Cluster, big_file: BigFile, tmp_path: Path
) -> None:
    for node in cluster.nodes:
        path = f"{node.url}/api/v1/files/{big_file.file_uuid}"
        assert cluster.curl("-o", str(tmp_path / "copy"), path).returncode == 0
    peaks = {node.id: peak_memory_bytes(cluster.pid(node)) for node in cluster.nodes}
    added = {name: peak - big_file.memory_bytes[name] for name, peak in peaks.items()}
    print("added memory MiB:", {name: each >> 20 for name, each in added.items()})
    assert max(added.values()) < ADDED_MEMORY_BYTES_MAX, (peaks, added)


def test_stock_tus_client_resumes_after_a_cut(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(cluster.ca))
    path = tmp_path / "tus.gns3p"
    sha256 = random_file(path, TUS_BYTES)
    created = cluster.create("tus.gns3p", size_bytes=TUS_BYTES)
    client = TusClient("", headers={"Authorization": f"Bearer {cluster.admin_token}"})
    holder = next(node for node in cluster.nodes if created["upload_url"].startswith(node.url))
    with ThrottlingProxy(holder.api_port, bytes_per_s=64 << 20) as proxy:
        slow_url = created["upload_url"].replace(holder.url, proxy.url)
        failed = upload_until_cut(client, path, slow_url, proxy)
    assert failed
    offset = cluster.get(f"/files/{created['file_uuid']}/status").json["offset"]
    assert 0 < offset < TUS_BYTES
    with path.open("rb") as stream:
        uploader = client.uploader(file_stream=stream, chunk_size=TUS_PIECE_BYTES, url=created["upload_url"])
        assert uploader.offset >= offset
        uploader.upload()
    record = cluster.get(f"/project-files/{created['file_uuid']}").json
    assert (record["status"], record["blob_sha256"]) == ("available", sha256)
    stored = BigFile(path, created["file_uuid"], sha256, TUS_BYTES)
    check_whole(cluster, stored, tmp_path / "copy")
    check_ranges(cluster, stored)


def upload_until_cut(client: TusClient, path: Path, url: str, proxy: ThrottlingProxy) -> bool:
    """Cut the connections once a third went through; whether the client noticed."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            with path.open("rb") as stream:
                client.uploader(file_stream=stream, chunk_size=TUS_PIECE_BYTES, url=url).upload()
        except (TusCommunicationError, OSError) as error:
            failures.append(error)

    proxy.cut_marks = [TUS_BYTES // 3]
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    return bool(failures)


def test_empty_file_is_stored(cluster: Cluster) -> None:
    file_uuid = cluster.store(b"", "empty.gns3p")
    answer = cluster.get(f"/files/{file_uuid}", node=cluster.nodes[1])
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["etag"] == f'"{hashlib.sha256().hexdigest()}"'
