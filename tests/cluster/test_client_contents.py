"""The Python client: content of every form up, down, in ranges, and through open files."""

import asyncio
import gzip
import hashlib
import io
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from filestore_client import Client
from filestore_client.base.errors import ChecksumMismatch, FilestoreError, Gone, InvalidRequest, NotFound
from filestore_client.base.records import FileRecord
from filestore_client.blocking import BUFFER_BYTES
from filestore_client.transfer.ranges import RANGE_BYTES_MIN
from filestore_client.transfer.reading import BLOCK_BYTES, BLOCKS_MAX
from filestore_client.transfer.sources import STREAM_PIECE_BYTES, Contents
from tests.cluster.connections import async_client_of, client_of
from tests.cluster.harness import Cluster
from tests.cluster.throttle import ThrottlingProxy

pytestmark = pytest.mark.usefixtures("own_memory")

MIB = 1 << 20
NO_UUID = "0192d3a0-0000-7000-8000-000000000000"


@cache
def whole_content() -> bytes:
    """More than a stream holds at once."""
    return os.urandom(STREAM_PIECE_BYTES + 3 * MIB + 5)


@cache
def large_content() -> bytes:
    """More blocks than a reader keeps."""
    return os.urandom((BLOCKS_MAX + 2) * BLOCK_BYTES + 77)


@pytest.fixture(scope="module")
def large(cluster: Cluster) -> str:
    """LARGE, in the cluster."""
    return cluster.store(large_content(), "large.bin")


def parts_of(content: bytes) -> Iterator[bytes]:
    """Of any size, some of them empty."""
    at, size = 0, 0
    while at < len(content):
        yield content[at : at + size]
        at, size = at + size, (size * 7 + 1) % (3 * MIB)


async def later(content: bytes) -> AsyncIterator[bytes]:
    for part in parts_of(content):
        await asyncio.sleep(0)
        yield part


def stored(client: Client, record: FileRecord) -> bytes:
    """The content, after a look at the record."""
    content = b"".join(client.files.read(record.file_uuid))
    assert record.status == "available"
    assert record.size_bytes == len(content)
    assert record.blob_sha256 == hashlib.sha256(content).hexdigest()
    return content


# Of what lies there.
FORMS: dict[str, Callable[[Path], Contents | Path | str]] = {
    "path": lambda path: path,
    "name": str,
    "open file": lambda path: path.open("rb"),
    "unbuffered file": lambda path: path.open("rb", buffering=0),
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "file in memory": lambda path: io.BytesIO(path.read_bytes()),
    "list": lambda path: list(parts_of(path.read_bytes())),
    "iterator": lambda path: parts_of(path.read_bytes()),
    "async iterator": lambda path: later(path.read_bytes()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("content", [b"", whole_content()], ids=["empty", "large"])
def test_content_of_every_form_arrives(client: Client, tmp_path: Path, form: str, content: bytes) -> None:
    path = tmp_path / "lab.bin"
    path.write_bytes(content)
    given = FORMS[form](path)
    told: list[tuple[int, int | None]] = []
    record = client.files.upload(given, filename="lab.bin", progress=lambda *now: told.append(now))
    if isinstance(given, io.IOBase):
        given.close()
    assert stored(client, record) == content
    assert record.filename == "lab.bin"
    assert told[-1] == (len(content), len(content))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


async def test_client_for_asyncio_takes_every_form_at_once(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "lab.bin"
    path.write_bytes(whole_content())
    async with async_client_of(cluster) as client:
        given = [make(path) for make in FORMS.values()]
        records = await asyncio.gather(*(client.files.upload(each, filename="lab.bin") for each in given))
        for each in given:
            if isinstance(each, io.IOBase):
                each.close()
    assert {record.blob_sha256 for record in records} == {hashlib.sha256(whole_content()).hexdigest()}
    assert len({record.file_uuid for record in records}) == len(FORMS)


def test_file_is_sent_from_where_it_stands_and_as_it_is_read(client: Client, tmp_path: Path) -> None:
    path, packed = tmp_path / "lab.bin", tmp_path / "lab.bin.gz"
    path.write_bytes(b"0123456789")
    packed.write_bytes(gzip.compress(b"what was packed"))
    with path.open("rb") as file:
        file.seek(4)
        assert stored(client, client.files.upload(file)) == b"456789"
    with gzip.open(packed) as unpacking:
        assert stored(client, client.files.upload(unpacking, filename="lab.bin")) == b"what was packed"
    with path.open("r+b") as both:
        both.write(b"new")
        both.seek(0)
        assert stored(client, client.files.upload(both)) == b"new3456789"
    with tempfile.TemporaryFile() as scratch:
        scratch.write(b"scratch")
        scratch.seek(0)
        assert stored(client, client.files.upload(scratch, filename="x")) == b"scratch"
    with path.open() as text, pytest.raises(InvalidRequest, match="rb"):
        client.files.upload(text)  # type: ignore[arg-type]


def test_source_that_fails_leaves_no_upload(client: Client) -> None:
    def breaks() -> Iterator[bytes]:
        yield whole_content()
        raise OSError(5, "the tape is torn")

    with pytest.raises(OSError, match="torn"):
        client.files.upload(breaks(), filename="torn.bin")
    assert [*client.files.list("backup", filename="torn.bin")] == []


def test_kind_and_fields_are_those_of_the_record(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "disk.img"
    path.write_bytes(b"QFI\xfb" + bytes(100))
    image = client.files.upload(path, vcpus=4)
    assert (image.kind, image.filename) == ("image", "disk.img")
    assert client.images.get(image.file_uuid).vcpus == 4
    assert client.images.get(image.file_uuid).format == "qcow2"
    with pytest.raises(InvalidRequest, match="vcpus"):
        client.files.upload(path, kind="backup", resume=False, vcpus=4)


def test_declared_checksum_of_other_content_is_refused(client: Client) -> None:
    with pytest.raises(ChecksumMismatch):
        client.files.upload(b"this", filename="sum.bin", blob_sha256=hashlib.sha256(b"that").hexdigest())


def test_upload_goes_on_after_cuts_within_one_call(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    path.write_bytes(large_content())
    with (
        ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=64 * MIB) as way,
        client_of(cluster, way.url) as client,
    ):
        way.cut_marks = [len(large_content()) // share for share in (4, 2)]
        record = client.files.upload(path, only_url=True)
        assert not way.cut_marks
        assert way.passed_bytes < len(large_content()) * 1.6
        assert stored(client, record) == large_content()


async def test_upload_goes_on_in_another_client_after_it_was_interrupted(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "broken-off.bin"
    path.write_bytes(large_content())
    with (
        ThrottlingProxy(cluster.nodes[1].api_port, bytes_per_s=16 * MIB) as first,
        ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=1 << 30) as second,
    ):
        async with async_client_of(cluster, first.url) as client:
            sending = asyncio.create_task(client.files.upload(path, only_url=True))
            while first.passed_bytes < 12 * MIB:
                await asyncio.sleep(0.01)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        (unfinished,) = cluster.get("/backups?filename=broken-off.bin").json["backups"]
        async with async_client_of(cluster, second.url) as again:
            record = await again.files.upload(path, only_url=True)
        assert record.file_uuid == unfinished["file_uuid"]
        assert second.passed_bytes < len(large_content()) - 8 * MIB
    assert record.blob_sha256 == hashlib.sha256(large_content()).hexdigest()


def test_downloads_are_whole_whatever_their_size_and_target(
    client: Client, large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int | None]] = []
    found = client.files.download(large, tmp_path / "copy", progress=lambda *now: told.append(now))
    assert found == tmp_path / "copy"
    assert found.read_bytes() == large_content()
    assert told[-1] == (len(large_content()), len(large_content()))
    assert client.files.download(large, tmp_path) == tmp_path / "large.bin"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large.bin").unlink()
    assert client.files.download(large) == Path("large.bin")
    assert (tmp_path / "large.bin").read_bytes() == large_content()
    stream = io.BytesIO()
    assert client.files.download(large, stream) is None
    assert stream.getvalue() == large_content()
    for size in (0, 1):
        record = client.files.upload(bytes(size), filename="small.bin")
        client.files.download(record.file_uuid, tmp_path / "small")
        assert (tmp_path / "small").read_bytes() == bytes(size)
    assert {path.name for path in tmp_path.iterdir()} <= {"copy", "large.bin", "small", "state"}


def test_download_takes_ranges_of_all_nodes_and_goes_on_after_a_cut(
    cluster: Cluster, large: str, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    with (
        ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=24 * MIB, is_down=True) as first,
        ThrottlingProxy(cluster.nodes[1].api_port, bytes_per_s=24 * MIB, is_down=True) as second,
        client_of(cluster, first.url, second.url) as client,
    ):
        first.cut_marks = [3 * MIB]
        client.files.download(large, target)
        assert not first.cut_marks
        assert second.passed_bytes > RANGE_BYTES_MIN
        assert first.passed_bytes + second.passed_bytes < len(large_content()) * 1.3
        assert target.read_bytes() == large_content()


def test_file_that_is_open_for_reading_is_one(client: Client, large: str) -> None:
    with client.files.open(large) as file:
        assert isinstance(file, io.BufferedReader)
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        assert file.read(10) == large_content()[:10]
        assert file.seek(-5, os.SEEK_END) == len(large_content()) - 5
        assert file.read() == large_content()[-5:]
        assert file.read(1) == b""
        assert file.seek(BLOCK_BYTES - 3) == BLOCK_BYTES - 3
        assert file.read(6) == large_content()[BLOCK_BYTES - 3 : BLOCK_BYTES + 3]
        assert file.seek(2, os.SEEK_CUR) == file.tell() == BLOCK_BYTES + 5
        assert file.seek(len(large_content()) + 9) == len(large_content()) + 9
        assert file.read() == b""
        with pytest.raises((ValueError, OSError)):
            file.seek(-1)
        file.seek(0)
        assert file.read() == large_content()
    assert file.closed
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with pytest.raises(ValueError, match="mode"):
        client.files.open(large, "r+")  # type: ignore[call-overload]


def test_random_reads_are_of_the_content(client: Client, large: str) -> None:
    seed = random.randrange(1 << 32)
    dice = random.Random(seed)
    buffered = client.files.open(large)
    with buffered.detach() if dice.random() < 0.5 else buffered as reader:
        at = 0
        for number in range(200):
            told = f"seed {seed}, read {number} at {at}"
            move = dice.choice(("on", "on", "set", "end", "back", "border"))
            if move != "on":
                at = {
                    "set": dice.randrange(len(large_content()) + MIB),
                    "end": max(0, len(large_content()) - dice.randrange(2 * BLOCK_BYTES)),
                    "back": max(0, at - dice.randrange(BLOCK_BYTES)),
                    "border": dice.randrange(BLOCKS_MAX + 3) * BLOCK_BYTES + dice.randrange(-2, 3),
                }[move]
                at = max(at, 0)
                assert reader.seek(at) == at, told
            size = dice.choice((0, 1, 7, BUFFER_BYTES - 1, BUFFER_BYTES + 1, 3 * BUFFER_BYTES, BLOCK_BYTES))
            size = dice.randrange(size + 1)
            part = reader.read(size)
            assert part is not None
            expected = large_content()[at : at + size]
            if isinstance(reader, io.BufferedReader):
                assert part == expected, told
            else:  # one that is not buffered may give less
                assert part == expected[: len(part)], told
                assert bool(part) == bool(expected), told
            at += len(part)


async def test_reader_goes_back_to_what_it_has_dropped(cluster: Cluster, large: str) -> None:
    """The oldest block gives way to the newest, and is the one that is read at the moment."""
    async with async_client_of(cluster) as client, await client.files.open(large) as reader:
        for number in (0, *range(2, BLOCKS_MAX + 1), 0, 0):
            reader.seek(number * BLOCK_BYTES)
            assert await reader.read(10) == large_content()[number * BLOCK_BYTES : number * BLOCK_BYTES + 10]


async def test_reader_fetches_ahead_of_who_reads_in_order(cluster: Cluster, large: str) -> None:
    way = ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=1 << 30, is_down=True)
    with way:
        async with async_client_of(cluster, way.url) as client, await client.files.open(large) as reader:
            assert await reader.read(1) == large_content()[:1]
            while way.passed_bytes < 2 * BLOCK_BYTES:
                await asyncio.sleep(0.01)
            reader.seek(6 * BLOCK_BYTES)
            assert await reader.read(1) == large_content()[6 * BLOCK_BYTES : 6 * BLOCK_BYTES + 1]


def test_file_that_is_open_for_writing_is_there_when_it_is_closed(client: Client) -> None:
    with client.files.open("written.bin", "wb", retention_period=2) as file:
        assert (file.writable(), file.readable(), file.seekable()) == (True, False, False)
        for part in parts_of(whole_content()):
            assert file.write(part) == len(part)
        assert file.tell() == len(whole_content())
        assert file.record is None
        assert [*client.files.list("backup", filename="written.bin", status="available")] == []
    assert file.record is not None
    assert file.record.retention_period == 2
    assert stored(client, file.record) == whole_content()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"more")
    with client.files.open("empty.bin", "wb") as file:
        pass
    assert file.record is not None
    assert stored(client, file.record) == b""


def test_text_is_written_through_a_wrapper(client: Client) -> None:
    file = client.files.open("text.txt", "wb", kind="project")
    with io.TextIOWrapper(cast(io.BufferedWriter, file), "utf-8") as text:
        text.write("Zeile für Zeile\n" * 1000)
    assert file.record is not None
    assert file.record.kind == "project"
    with io.TextIOWrapper(client.files.open(file.record.file_uuid), "utf-8") as text:
        assert text.readline() == "Zeile für Zeile\n"


def test_half_a_file_never_becomes_available(cluster: Cluster) -> None:
    name = "half.bin"
    with client_of(cluster) as client:
        file = client.files.open(name, "wb")

        def leave() -> None:
            with file:
                file.write(whole_content())
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            leave()
        assert file.closed
        assert file.record is None
        aborted = client.files.open(name, "wb")
        aborted.write(whole_content())
        aborted.abort()
        aborted.abort()
        forgotten = client.files.open(name, "wb")
        forgotten.write(whole_content())
        del forgotten
        still_open = client.files.open(name, "wb")
        still_open.write(whole_content())
    with pytest.raises(RuntimeError, match="closed"):
        still_open.close()
    assert cluster.get(f"/backups?filename={name}&status=available").json["backups"] == []


def test_write_after_the_upload_has_failed_raises_why(client: Client) -> None:
    file = client.files.open("refused.bin", "wb", bucket_id=NO_UUID)

    def write_on() -> None:
        while True:
            file.write(whole_content())

    for act in (write_on, write_on, file.close):
        with pytest.raises(InvalidRequest, match="bucket"):
            act()
    assert file.closed
    with pytest.raises(InvalidRequest), client.files.open("refused.bin", "wb", bucket_id=NO_UUID) as small:
        small.write(b"x")


async def test_writer_of_asyncio_that_was_interrupted_ends_in_no_file(cluster: Cluster) -> None:
    way = ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=MIB)
    with way:
        async with async_client_of(cluster, way.url) as client:
            writer = await client.files.open("interrupted.bin", "wb")

            async def fill() -> None:
                while True:
                    await writer.write(bytes(MIB))

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fill(), 0.5)
            way.bytes_per_s = 1 << 30
            with pytest.raises((FilestoreError, ValueError)):
                await writer.write(b"more")
            with pytest.raises(FilestoreError, match="discarded"):
                await writer.close()
            await writer.abort()
            listed = client.files.list("backup", filename="interrupted.bin", status="available")
            assert [file async for file in listed] == []


async def test_writer_of_asyncio_closes_once(cluster: Cluster) -> None:
    async with async_client_of(cluster) as client:
        async with await client.files.open("once.bin", "wb") as writer:
            view = memoryview(bytearray(8)).cast("I")
            assert await writer.write(view) == 8  # bytes, whatever the view counts
        assert writer.record is not None
        assert await writer.close() == writer.record
        assert writer.record.size_bytes == 8


def test_file_that_is_deleted_while_it_is_read_is_told(client: Client) -> None:
    record = client.files.upload(large_content(), filename="deleted.bin")
    with client.files.open(record.file_uuid) as file:
        assert file.read(1) == large_content()[:1]
        client.files.delete(record.file_uuid)
        file.seek(9 * BLOCK_BYTES)
        with pytest.raises((NotFound, Gone)):
            file.read(1)


def test_reading_stops_wherever_the_reader_stops(client: Client, large: str) -> None:
    for _ in range(3):
        parts = client.files.read(large)
        assert large_content().startswith(next(iter(parts)))
        del parts
    assert b"".join(client.files.read(large, 5, 9)) == large_content()[5:9]
    assert b"".join(client.files.read(large, len(large_content()) + 1)) == b""
    assert b"".join(client.files.read(large, 7, 7)) == b""
    assert client.files.stat(large).size_bytes == len(large_content())
