"""The client sends one file in parts over as many connections, and goes on when it was interrupted."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from filestore_client.base.errors import ChecksumMismatch, FileChanged
from filestore_client.transfer.parallel import PART_BYTES_MIN
from tests.cluster.connections import async_client_of, client_of
from tests.cluster.harness import Cluster, run_filestore
from tests.cluster.throttle import ThrottlingProxy

pytestmark = pytest.mark.usefixtures("own_memory")

MIB = 1 << 20
SIZE = 3 * PART_BYTES_MIN + 5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "größe.tar"
    path.write_bytes(os.urandom(SIZE))
    return path


def remembered(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state").rglob("*.json"))


def test_file_is_sent_in_parts_and_stored_as_it_is(cluster: Cluster, file: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    bucket_id = cluster.post("/buckets", {"name": "parallel"}).json["bucket_id"]
    with (
        ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=16 * MIB) as way,
        client_of(cluster, way.url) as client,
    ):
        record = client.files.upload(
            file,
            kind="image",
            parallel=3,
            only_url=True,
            progress=lambda done, all_: told.append((done, all_)),
            bucket_id=bucket_id,
            vcpus=3,
            extra_attributes_json='{"a": "ü"}',
        )
        assert way.connections_most >= 3
    assert (record.status, record.filename, record.size_bytes) == ("available", file.name, SIZE)
    assert record.blob_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    shown = cluster.get(f"/vms/{record.file_uuid}").json
    assert (shown["vcpus"], shown["extra_attributes_json"]) == (3, '{"a": "ü"}')
    assert cluster.get(f"/files/{record.file_uuid}", node=cluster.nodes[1]).body == file.read_bytes()
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (SIZE, SIZE)
    assert len(cluster.get(f"/buckets/{bucket_id}/files").json["files"]) == 1
    assert remembered(tmp_path) == []


def test_small_file_is_sent_as_a_whole(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "small.tar"
    path.write_bytes(bytes(2 * PART_BYTES_MIN - 1))
    with client_of(cluster) as client:
        record = client.files.upload(path, parallel=8)
    assert record.size_bytes == 2 * PART_BYTES_MIN - 1


async def test_upload_in_parts_goes_on_where_it_was_interrupted(
    cluster: Cluster, file: Path, tmp_path: Path
) -> None:
    size_bytes = 48 * MIB  # a third has a piece that is not the last one
    file.write_bytes(os.urandom(size_bytes))
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=32 * MIB) as way:
        async with async_client_of(cluster, way.url) as client:

            def interrupt(_done: int, _all: int | None) -> None:
                if way.passed_bytes > 28 * MIB:
                    uploading.cancel()

            sending = client.files.upload(file, parallel=3, only_url=True, progress=interrupt)
            uploading = asyncio.create_task(sending)
            with pytest.raises(asyncio.CancelledError):
                await uploading
        assert len(remembered(tmp_path)) == 1
        began_at = way.passed_bytes
        async with async_client_of(cluster, way.url) as client:
            record = await client.files.upload(file, parallel=3, only_url=True)
        assert way.passed_bytes - began_at < size_bytes * 3 // 4
    assert cluster.get(f"/files/{record.file_uuid}").body == file.read_bytes()
    assert remembered(tmp_path) == []


@pytest.mark.parametrize("parallel", [pytest.param(1, marks=pytest.mark.long), 3])
async def test_parts_of_an_earlier_content_are_not_gone_on_with(
    cluster: Cluster, file: Path, tmp_path: Path, parallel: int
) -> None:
    """A file system whose times do not tell that the file was changed: the memory is still of this file."""
    size_bytes = 25 * MIB
    file.write_bytes(os.urandom(size_bytes))

    async def interrupted(way: ThrottlingProxy, until: int) -> Path:
        stop_at = way.passed_bytes + until
        async with async_client_of(cluster, way.url) as client:

            def interrupt(_done: int, _all: int | None) -> None:
                if way.passed_bytes > stop_at:
                    uploading.cancel()

            sending = client.files.upload(file, parallel=parallel, only_url=True, progress=interrupt)
            uploading = asyncio.create_task(sending)
            with pytest.raises(asyncio.CancelledError):
                await uploading
        return max(remembered(tmp_path), key=lambda path: path.stat().st_mtime_ns)

    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=48 * MIB) as way:
        of_earlier = await interrupted(way, 16 * MIB)
        with file.open("r+b") as opened:
            for at in range(MIB, size_bytes, 8 * MIB):
                opened.seek(at)
                opened.write(os.urandom(4096))
        of_later = await interrupted(way, 0)
        assert of_later != of_earlier
        of_earlier.replace(of_later)
        way.bytes_per_s = 1 << 30
        async with async_client_of(cluster, way.url) as client:
            record = await client.files.upload(file, parallel=parallel, only_url=True)
    assert cluster.get(f"/files/{record.file_uuid}").body == file.read_bytes()
    assert remembered(tmp_path) == []


async def test_file_whose_answer_was_lost_is_not_stored_twice(cluster: Cluster, file: Path) -> None:
    async with async_client_of(cluster) as client:
        first, _ = await client.files.upload_remembered(file, parallel=2)
        again, memory = await client.files.upload_remembered(file, parallel=2)
        assert again.file_uuid == first.file_uuid
        await client.files.delete(first.file_uuid)
        other, memory = await client.files.upload_remembered(file, parallel=2)
        assert other.file_uuid != first.file_uuid
        memory.forget()


async def test_file_that_changes_meanwhile_is_not_stored(
    cluster: Cluster, file: Path, tmp_path: Path
) -> None:
    bucket_id = cluster.post("/buckets", {"name": "changing"}).json["bucket_id"]

    def change(_done: int, _all: int | None) -> None:
        with file.open("ab") as grown:
            grown.write(b"x")

    async with async_client_of(cluster) as client:
        with pytest.raises((FileChanged, ChecksumMismatch)):
            await client.files.upload(file, parallel=3, progress=change, bucket_id=bucket_id)
    assert cluster.get(f"/buckets/{bucket_id}/files").json["files"] == []
    assert cluster.get(f"/buckets/{bucket_id}").json["reserved_bytes"] == 0
    assert remembered(tmp_path) == []


def test_put_sends_a_file_in_parts(cluster: Cluster, file: Path) -> None:
    done = run_filestore(
        ["put", str(file), "--parallel", "3", "--retention", "5"], cluster.command_environment()
    )
    assert done.returncode == 0, done.stderr
    record = cluster.get(f"/backups/{done.stdout.decode().strip()}").json
    assert (record["retention_period"], record["size_bytes"]) == (5, SIZE)
    assert cluster.filestore("put", str(file), "--parallel", "17").returncode == 2
