"""A node whose disk is slow, full or failing, or that dies over it: what it has told stays true."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.cluster.faulty_disk import injected
from tests.cluster.harness import Answer, Cluster
from tests.cluster.test_damage import replica

TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
# Writes of 512 KiB, more of them than a node has threads for its disk: `when=2+` counts in each thread.
CONTENT = os.urandom(18_000_000)
PART = 2_000_000  # long enough for the way past the HTTP parser


@pytest.fixture(scope="module")
def lone_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One replica of everything, so that only one disk counts."""
    directory = tmp_path_factory.mktemp("lone")
    with Cluster(directory, node_count=1, replicas=1, write_quorum=1) as started:
        yield started


class Upload:
    """An upload of CONTENT of which the first PART is durable."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        created = cluster.create(size_bytes=len(CONTENT))
        self.file_uuid, self.url = created["file_uuid"], created["upload_url"]
        self.directory = cluster.data(cluster.nodes[0]) / "uploads" / self.file_uuid
        assert self.patch(0, PART).status == 204

    def patch(self, start: int, stop: int) -> Answer:
        headers = {**TUS, "Upload-Offset": str(start)}
        return self.cluster.request("PATCH", self.url, content=CONTENT[start:stop], headers=headers)

    def head(self) -> Answer:
        return self.cluster.request("HEAD", self.url, headers={"Tus-Resumable": "1.0.0"})

    def offset(self) -> int:
        answer = self.head()
        assert answer.status == 200
        return int(answer.headers["upload-offset"])

    def finish(self, start: int) -> None:
        if start < len(CONTENT):  # HEAD has ended it otherwise
            assert self.patch(start, len(CONTENT)).status == 204
        found = self.cluster.get(f"/files/{self.file_uuid}").body
        assert hashlib.sha256(found).digest() == hashlib.sha256(CONTENT).digest()


def test_offset_is_told_only_after_a_slow_disk_has_synced_data_and_record(
    lone_node: Cluster, tmp_path: Path
) -> None:
    upload, log = Upload(lone_node), tmp_path / "strace.log"
    files = [upload.directory / name for name in ("data", "offset")]
    pid = lone_node.pid(lone_node.nodes[0])
    with injected(pid, "fdatasync:delay_exit=300000", log, *files):
        answer = upload.patch(PART, 2 * PART)
        synced = log.read_text()
    assert (answer.status, answer.headers["upload-offset"]) == (204, str(2 * PART))
    data, record = (synced.find(f"<{path}>) = 0 (DELAYED)") for path in files)
    assert 0 < data < record, synced
    upload.finish(2 * PART)


@pytest.mark.parametrize("stop", [PART + 1000, pytest.param(len(CONTENT), marks=pytest.mark.long)])
def test_client_that_waits_for_the_disk_is_not_cut_off_by_who_asks_for_the_offset(
    lone_node: Cluster, tmp_path: Path, stop: int
) -> None:
    """It sends nothing for longer than a client that is gone may: the node takes nothing from it."""
    upload = Upload(lone_node)
    pid = lone_node.pid(lone_node.nodes[0])
    fault = "pwrite64:delay_exit=4500000:when=1"
    with (
        injected(pid, fault, tmp_path / "strace.log", upload.directory / "data"),
        ThreadPoolExecutor(1) as other,
    ):
        writing = other.submit(upload.patch, PART, stop)
        while not writing.done():
            answer = upload.head()
            if answer.status == 423:  # all bytes are there, and that request is about to complete them
                assert stop == len(CONTENT)
            else:  # in between once the slow write is durable
                assert PART <= int(answer.headers["upload-offset"]) <= stop
            wait([writing], timeout=0.2)
        assert writing.result().status == 204
    assert upload.offset() == stop


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("fdatasync:error=EIO", 503, "unavailable"),
        ("fdatasync:error=ENOSPC", 507, "insufficient_storage"),
        ("pwrite64:error=ENOSPC", 507, "insufficient_storage"),
        ("pwrite64:error=EIO", 503, "unavailable"),
        ("pwrite64:error=EIO:when=2+", 503, "unavailable"),
    ],
)
def test_failing_disk_is_told_and_the_upload_goes_on_from_what_is_durable(
    lone_node: Cluster, tmp_path: Path, fault: str, status: int, code: str
) -> None:
    upload = Upload(lone_node)
    pid = lone_node.pid(lone_node.nodes[0])
    with injected(pid, fault, tmp_path / "strace.log", upload.directory / "data"):
        answer = upload.patch(PART, len(CONTENT))
        assert (answer.status, answer.json["code"]) == (status, code)
        assert upload.offset() == PART
    assert upload.offset() == PART
    upload.finish(PART)


def test_content_whose_last_sync_failed_is_not_available_before_it_was_synced_anew(
    lone_node: Cluster, tmp_path: Path
) -> None:
    upload = Upload(lone_node)
    assert upload.patch(PART, 2 * PART).status == 204
    pid = lone_node.pid(lone_node.nodes[0])
    with injected(pid, "fsync:error=EIO", tmp_path / "strace.log", upload.directory / "data"):
        assert upload.patch(2 * PART, len(CONTENT)).status == 503
        assert lone_node.get(f"/files/{upload.file_uuid}").status == 409
    offset = upload.offset()
    assert offset in (2 * PART, len(CONTENT))
    upload.finish(offset)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_node_that_dies_between_the_unlink_and_its_report_reports_after_its_start(
    lone_node: Cluster, tmp_path: Path
) -> None:
    content, node = os.urandom(200_000), lone_node.nodes[0]
    file_uuid = lone_node.store(content)
    path = replica(lone_node, node, content)
    rows = "SELECT sha256 FROM blob_replicas WHERE sha256 = ?"
    sidecar = path.with_name(path.name + ".sums")
    os.utime(sidecar, (0, 0))  # nobody was told of it lately
    assert lone_node.request("DELETE", f"/project-files/{file_uuid}?now=1").status == 200
    upload = lone_node.data(node) / "uploads" / file_uuid
    wait_until(lambda: not upload.exists(), what="the end of the upload, which pins it", timeout_s=90)
    pid = lone_node.pid(node)
    with injected(pid, "fsync:signal=KILL", tmp_path / "strace.log", path.parent):
        assert lone_node.post("/jobs/gc", {"grace_s": 0}).status == 202
        wait_until(lambda: is_dead(pid), what="the end", timeout_s=90)
    lone_node.kill(node)  # it has ended: this takes its exit code
    assert not path.exists()
    assert not sidecar.exists()
    assert lone_node.logged(rows, path.name) == [(path.name,)]
    lone_node.restart(node)
    wait_until(lambda: not lone_node.logged(rows, path.name), what="the report", timeout_s=90)
    wait_until(
        lambda: not lone_node.logged("SELECT sha256 FROM blobs WHERE sha256 = ?", path.name),
        what="the end of the blob",
        timeout_s=90,
    )
    assert lone_node.get(f"/files/{file_uuid}").status == 404
    assert not path.exists()
    assert not (lone_node.data(node) / "quarantine" / path.name).exists()


def is_dead(pid: int) -> bool:
    """Whether a process has ended and nobody has asked for its exit code yet."""
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
