"""Uploads that refer to another file: over HTTP, and by the client, which sends what is new."""

import hashlib
import os
import random
import re
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from filestore_client import Client
from filestore_client.base.transport import Transport
from filestore_client.transfer import uploading
from filestore_client.transfer.delta import BASE_FIELD, DELTA_TYPE
from tests.cluster.connections import client_of
from tests.cluster.harness import Answer, Cluster
from tests.cluster.test_uploads import Upload, digest_of
from tests.unit.filestore_client.test_delta import list_of, sample_of
from tests.unit.node.cold.test_delta import literal, span

MIB = 1 << 20
NO_UUID = "0192d3a0-0000-7000-8000-000000000000"
SENT = re.compile(r"^filestore_upload_bytes_total (\S+)$", re.MULTILINE)


@cache
def old_image() -> bytes:
    return random.Random(7).randbytes(24 * MIB)


@cache
def new_image() -> bytes:
    return old_image()[: 9 * MIB] + os.urandom(100_000) + old_image()[9 * MIB :] + b"end"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Not the shared one, whose nodes are to have little memory by tests/cluster/test_transfer.py."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(autouse=True)
def _own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with client_of(cluster) as made:
        yield made


@pytest.fixture(scope="module")
def base(cluster: Cluster) -> str:
    return cluster.store(old_image(), "disk.img")


def delta(upload: Upload, offset: int, body: bytes, base: str, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    told = {"Tus-Resumable": "1.0.0", "Upload-Offset": str(offset), "Content-Type": DELTA_TYPE}
    return upload.send("PATCH", body, {**told, BASE_FIELD: base, **named})


def received_bytes(cluster: Cluster) -> float:
    """The bytes of bodies that the nodes have received for uploads so far."""
    texts = [cluster.get("/metrics", node=node).body.decode() for node in cluster.nodes]
    return sum(float(found[1]) for text in texts if (found := SENT.search(text)))


def test_chunks_of_hot_content_are_listed_by_every_node(cluster: Cluster, base: str) -> None:
    for node in cluster.nodes:
        answer = cluster.get(f"/files/{base}/chunks", node=node)
        assert (answer.status, answer.body) == (200, list_of(old_image()))
        assert answer.headers["content-type"] == "application/vnd.filestore.chunks"


def test_sample_of_hot_content_is_cheaper_and_a_list_of_its_parts(cluster: Cluster, base: str) -> None:
    wanted = sample_of(old_image())
    for node in cluster.nodes:
        assert cluster.get(f"/files/{base}/chunks?sample=1", node=node).body == wanted
    assert cluster.get(f"/files/{base}/chunks?sample=yes").status == 400


def test_delta_is_stored_as_the_content_that_it_describes(cluster: Cluster, base: str) -> None:
    upload = Upload(cluster, size_bytes=len(new_image()))
    start = 9 * MIB
    first = span(0, 8 * MIB) + span(8 * MIB, MIB) + literal(new_image()[start : start + 50_000])
    rest = literal(new_image()[start + 50_000 : start + 100_000]) + span(start, 15 * MIB) + literal(b"end")
    assert delta(upload, 0, first, base).status == 204
    assert upload.offset() == start + 50_000
    digest = digest_of(new_image())
    assert delta(upload, start + 50_000, rest, base, Repr_Digest=digest).status == 204
    assert upload.content() == new_image()


def test_delta_of_other_content_than_declared_is_rejected(cluster: Cluster, base: str) -> None:
    upload = Upload(cluster, size_bytes=2 * MIB)
    answer = delta(upload, 0, span(5, 2 * MIB), base, Repr_Digest=digest_of(old_image()[: 2 * MIB]))
    assert (answer.status, answer.json["code"]) == (460, "checksum_mismatch")
    assert upload.offset() == 0
    assert upload.status() == "uploading" or upload.status() == "pending"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\2", 400),
        (span(0, 0), 400),
        (span(len(old_image()), 1), 400),
        (literal(b"abc") + span(0, 9)[:5], 400),
        (span(0, MIB) * 40, 413),
        (struct.pack("<BI", 0, 2**31), 413),
    ],
)
def test_hostile_delta_leaves_the_upload_as_it_was(
    cluster: Cluster, base: str, body: bytes, status: int
) -> None:
    upload = Upload(cluster, size_bytes=25 * MIB)
    assert delta(upload, 0, span(0, MIB), base).status == 204
    assert delta(upload, MIB, body, base).status == status
    assert upload.offset() == MIB
    assert delta(upload, MIB, span(MIB, 24 * MIB - MIB), base).status == 204


def test_headers_that_cannot_be_of_a_delta_are_rejected(cluster: Cluster, base: str) -> None:
    upload = Upload(cluster, size_bytes=MIB)
    assert delta(upload, 0, span(0, MIB), "nothing").status == 400
    digest = digest_of(span(0, MIB))
    assert delta(upload, 0, span(0, MIB), base, Content_Digest=digest).status == 400
    assert upload.offset() == 0


def test_base_that_may_not_be_read_is_answered_as_one_that_does_not_exist(
    cluster: Cluster, base: str
) -> None:
    stranger = cluster.user_token("stranger-of-deltas")
    created = cluster.create("own.img", token=stranger, size_bytes=MIB)
    bases = {"foreign": base, "none": NO_UUID, "unfinished": str(cluster.create("new.img")["file_uuid"])}

    def told(file_uuid: str) -> tuple[tuple[int, str], ...]:
        headers = {"Tus-Resumable": "1.0.0", "Upload-Offset": "0", "Content-Type": DELTA_TYPE}
        found = [
            cluster.get(f"/files/{file_uuid}/chunks", token=stranger),
            cluster.request(
                "PATCH",
                created["upload_url"],
                token=stranger,
                content=span(0, MIB),
                headers=headers | {BASE_FIELD: file_uuid},
            ),
        ]
        return tuple((answer.status, answer.json["details"]) for answer in found)

    assert {told(file_uuid) for file_uuid in bases.values()} == {told(NO_UUID)}
    assert {status for status, _ in told(base)} == {404}
    grant = {"permission": "read", "principal_type": "user", "principal_id": "stranger-of-deltas"}
    assert cluster.post(f"/files/{base}/permissions", grant).status == 201
    assert cluster.get(f"/files/{base}/chunks", token=stranger).body == list_of(old_image())


def test_client_sends_what_changed_since_the_newest_version(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "versions.img"
    path.write_bytes(old_image())
    client.files.upload(path, kind="backup")
    path.write_bytes(new_image())
    before = received_bytes(cluster)
    record = client.files.upload(path, kind="backup")
    assert record.blob_sha256 == hashlib.sha256(new_image()).hexdigest()
    assert received_bytes(cluster) - before < 2 * MIB
    target = client.files.download(record.file_uuid, tmp_path / "back")
    assert target is not None
    assert target.read_bytes() == new_image()


def test_client_asks_no_more_than_a_sample_of_a_namesake_of_other_content(
    cluster: Cluster, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, asked = tmp_path / "namesake.img", list[str]()
    answer = Transport.answer

    def note(self: Transport, method: str, path: str, **named: Any) -> Any:
        asked.append(path.rpartition("/")[2])
        return answer(self, method, path, **named)

    monkeypatch.setattr(Transport, "answer", note)
    for content, lists in (
        (old_image(), []),
        (new_image(), ["chunks?sample=1", "chunks"]),
        (os.urandom(24 * MIB), ["chunks?sample=1"]),
    ):
        asked.clear()
        path.write_bytes(content)
        record = client.files.upload(path, kind="backup")
        assert record.blob_sha256 == hashlib.sha256(content).hexdigest()
        assert [name for name in asked if name.startswith("chunks")] == lists


def test_base_is_the_file_of_the_same_folder_where_there_is_one(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """Each lab of a tree has a disk of the same name; the newest one is of another lab."""
    other = os.urandom(len(old_image()))
    for folder, content in (("lab1", old_image()), ("lab2", other)):
        (tmp_path / "same.img").write_bytes(content)
        client.files.upload(tmp_path / "same.img", kind="backup", path=folder)
    before = received_bytes(cluster)
    (tmp_path / "same.img").write_bytes(new_image())
    record = client.files.upload(tmp_path / "same.img", kind="backup", path="lab1")
    assert record.blob_sha256 == hashlib.sha256(new_image()).hexdigest()
    assert received_bytes(cluster) - before < len(new_image()) / 4


def test_client_sends_a_stream_with_the_base_that_is_named(
    cluster: Cluster, base: str, client: Client
) -> None:
    before = received_bytes(cluster)
    parts = (new_image()[at : at + 300_000] for at in range(0, len(new_image()), 300_000))
    record = client.files.upload(parts, kind="backup", filename="stream", base=base)
    assert record.blob_sha256 == hashlib.sha256(new_image()).hexdigest()
    assert received_bytes(cluster) - before < 3 * MIB


def test_client_without_a_base_that_can_be_read_sends_all(
    cluster: Cluster, base: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.img"
    path.write_bytes(new_image())
    with client_of(cluster, token=cluster.user_token("nobody-of-deltas")) as client:
        record = client.files.upload(path, kind="backup", base=base)
    assert record.blob_sha256 == hashlib.sha256(new_image()).hexdigest()


def test_client_sends_all_from_where_the_base_was_deleted(
    cluster: Cluster, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filestore_client.transfer.sources.FILE_PIECE_BYTES", 4 * MIB)
    other, path = cluster.store(old_image(), "gone.img"), tmp_path / "new.img"
    path.write_bytes(new_image())
    done: list[int] = []

    def progress(sent_bytes: int, _all: int | None) -> None:
        if sent_bytes > 5 * MIB and not done:
            assert cluster.request("DELETE", f"/files/{other}").status == 200
            done.append(sent_bytes)

    record = client.files.upload(path, kind="backup", base=other, progress=progress)
    assert done
    assert record.blob_sha256 == hashlib.sha256(new_image()).hexdigest()


def test_client_falls_back_at_a_server_that_knows_no_deltas(
    cluster: Cluster, base: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "DELTA_TYPE", "application/x-unknown")  # 415, as of release 0.1.0
    path = tmp_path / "new.img"
    path.write_bytes(new_image())
    record = client.files.upload(path, kind="backup", base=base)
    assert record.blob_sha256 == hashlib.sha256(new_image()).hexdigest()
