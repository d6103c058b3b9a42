"""The Python client sends a small file in one request, and no file twice whatever becomes of the answer."""

import io
import os
import secrets
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from filestore_client import Client
from filestore_client.base.errors import Forbidden, InvalidRequest, Unavailable
from filestore_client.base.records import Backup, Image
from filestore_client.base.transport import Transport
from filestore_client.transfer.creating import SMALL_BYTES_MAX, metadata_of
from tests.cluster.connections import async_client_of, client_of
from tests.cluster.harness import Cluster
from tests.cluster.lost_answers import LossyProxy

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_memory")]  # run by `make long`

CONTENT = os.urandom(5000)
SENT_TWICE = ["POST", "PATCH", "GET"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the requests that clients send, one after the other."""
    methods: list[str] = []
    exchange = Transport.exchange

    @asynccontextmanager
    async def counted(self: Transport, method: str, path: str, **options: Any) -> Any:
        methods.append(method)
        async with exchange(self, method, path, **options) as response:
            yield response

    monkeypatch.setattr(Transport, "exchange", counted)
    return methods


def unique() -> str:
    return f"small-{secrets.token_hex(6)}"


def stored(client: Client, name: str) -> list[bytes]:
    """The contents of all backups of this name."""
    return [b"".join(client.files.read(found.file_uuid)) for found in client.backups.list(filename=name)]


def as_bytes(client: Client, name: str, content: bytes, _directory: Path) -> Any:
    return client.files.upload(content, filename=name)


def as_path(client: Client, name: str, content: bytes, directory: Path) -> Any:
    (directory / name).write_bytes(content)
    return client.files.upload(directory / name)


def as_open_file(client: Client, name: str, content: bytes, directory: Path) -> Any:
    (directory / name).write_bytes(content)
    with (directory / name).open("rb") as file:
        return client.files.upload(file)


def as_stream(client: Client, name: str, content: bytes, _directory: Path) -> Any:
    parts = (content[at : at + 999] for at in range(0, len(content), 999))
    return client.files.upload(parts, filename=name)


def as_unseekable(client: Client, name: str, content: bytes, _directory: Path) -> Any:
    return client.files.upload(io.BytesIO(content), filename=name)


def as_written(client: Client, name: str, content: bytes, _directory: Path) -> Any:
    with client.files.open(name, "wb") as file:
        file.write(content)
    return file.record


FORMS = [as_bytes, as_path, as_open_file, as_stream, as_unseekable, as_written]


@pytest.mark.parametrize("size_bytes", [0, 1, SMALL_BYTES_MAX])
@pytest.mark.parametrize("form", FORMS)
def test_small_file_is_one_request(
    client: Client, asked: list[str], tmp_path: Path, form: Callable[..., Any], size_bytes: int
) -> None:
    name, content = unique(), os.urandom(size_bytes)
    record = form(client, name, content, tmp_path)
    assert asked == ["POST"]
    assert (record.status, record.size_bytes, record.filename) == ("available", size_bytes, name)
    assert record == client.backups.get(record.file_uuid)
    assert record.etag
    assert stored(client, name) == [content]


@pytest.mark.parametrize("form", FORMS)
def test_larger_file_is_created_first(
    client: Client, asked: list[str], tmp_path: Path, form: Callable[..., Any]
) -> None:
    name, content = unique(), os.urandom(SMALL_BYTES_MAX + 1)
    form(client, name, content, tmp_path)
    assert asked == SENT_TWICE
    assert stored(client, name) == [content]


async def test_client_for_asyncio_sends_one_request_for_each(cluster: Cluster, asked: list[str]) -> None:
    async with async_client_of(cluster) as client:
        for number in range(10):
            await client.files.upload(CONTENT + bytes([number]), filename=unique())
    assert asked == ["POST"] * 10


def test_progress_is_told_to_the_end(client: Client) -> None:
    told: list[tuple[int, int | None]] = []
    client.files.upload(CONTENT, filename=unique(), progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_fields_of_every_type_are_those_of_the_record(client: Client, asked: list[str]) -> None:
    bucket_id = client.buckets.create(unique()).bucket_id
    asked.clear()
    image = client.files.upload(
        b"QFI\xfb", kind="image", filename="ü, =.qcow2", vcpus=2, ram_mb=512, bucket_id=bucket_id
    )
    assert isinstance(image, Image)
    assert (image.filename, image.vcpus, image.ram_mb, image.bucket_id) == ("ü, =.qcow2", 2, 512, bucket_id)
    backup = client.files.upload(
        CONTENT, filename=unique(), is_encrypted=True, is_compressed=False, retention_period=7
    )
    assert isinstance(backup, Backup)
    assert (backup.is_encrypted, backup.is_compressed, backup.retention_period) == (True, False, 7)
    assert asked == ["POST", "POST"]


def test_what_goes_into_no_header_goes_as_before(client: Client, asked: list[str]) -> None:
    attributes = '{"x": "' + "y" * 5000 + '"}'
    image = client.files.upload(
        CONTENT, kind="image", filename=unique(), extra_attributes_json=attributes, vcpus=1
    )
    assert isinstance(image, Image)
    assert image.extra_attributes_json == attributes
    assert asked == SENT_TWICE
    assert metadata_of({"vcpus": 1.5}) is None
    assert metadata_of({"filename": "\udc80"}) is None
    assert metadata_of({"a b": "c"}) is None


def test_refusal_is_raised_as_it_was(cluster: Cluster, client: Client) -> None:
    with pytest.raises(InvalidRequest, match="vcpus"):
        client.files.upload(CONTENT, kind="image", filename=unique(), vcpus=-1)
    bucket_id = client.buckets.create(unique()).bucket_id
    with client_of(cluster, token=cluster.user_token(unique())) as stranger, pytest.raises(Forbidden):
        stranger.files.upload(CONTENT, filename=unique(), bucket_id=bucket_id)


@pytest.mark.parametrize("form", [as_bytes, as_path, as_written])
def test_server_that_takes_no_bytes_so_is_asked_twice(
    cluster: Cluster, asked: list[str], tmp_path: Path, form: Callable[..., Any]
) -> None:
    """A coordinator takes none, as servers of older versions do not; it is tried once."""
    names = [unique() for _ in range(3)]
    with client_of(cluster, cluster.coordinators[0].url) as client:
        for name in names:
            form(client, name, CONTENT, tmp_path)
        assert asked == ["POST", *SENT_TWICE, *SENT_TWICE, *SENT_TWICE]
    with client_of(cluster) as client:
        assert [stored(client, name) for name in names] == [[CONTENT]] * 3


@pytest.mark.parametrize("form", FORMS)
def test_file_whose_answer_was_lost_is_stored_once(
    cluster: Cluster, tmp_path: Path, form: Callable[..., Any]
) -> None:
    name = unique()
    with LossyProxy(cluster.nodes[0].api_port) as way, client_of(cluster, way.url) as client:
        client.whoami()
        way.losses = 1
        record = form(client, name, CONTENT, tmp_path)
        assert way.lost == 1
        assert [found.file_uuid for found in client.backups.list(filename=name)] == [record.file_uuid]
        assert stored(client, name) == [CONTENT]


def test_answer_that_was_lost_is_asked_for_at_another_node(cluster: Cluster) -> None:
    name = unique()
    with (
        LossyProxy(cluster.nodes[0].api_port) as way,
        client_of(cluster, way.url, cluster.nodes[1].url, cluster.nodes[2].url) as client,
    ):
        client.whoami()
        way.losses = 1
        client.files.upload(CONTENT, filename=name)
        assert way.lost == 1
        assert stored(client, name) == [CONTENT]


def test_unanswered_file_is_not_stored_again_by_a_server_that_cannot_know(cluster: Cluster) -> None:
    name = unique()
    with (
        LossyProxy(cluster.nodes[0].api_port) as way,
        client_of(cluster, way.url, cluster.coordinators[0].url, deadline_s=10) as client,
    ):
        client.whoami()
        way.losses = 1
        client.files.upload(CONTENT, filename=name)
        assert way.lost == 1
        assert stored(client, name) == [CONTENT]


def test_file_that_was_stored_unheard_is_found_by_the_next_run(cluster: Cluster, tmp_path: Path) -> None:
    name = unique()
    (tmp_path / name).write_bytes(CONTENT)
    with (
        LossyProxy(cluster.nodes[0].api_port) as way,
        client_of(cluster, way.url, deadline_s=0.05) as client,
    ):
        client.whoami()
        way.losses = 1
        with pytest.raises(Unavailable):
            client.files.upload(tmp_path / name)
        assert way.lost == 1
    with client_of(cluster) as client:
        (found,) = client.backups.list(filename=name)
        assert client.files.upload(tmp_path / name).file_uuid == found.file_uuid
        assert stored(client, name) == [CONTENT]
        other = client.files.upload(tmp_path / name)  # which is not that one any more
        assert other.file_uuid != found.file_uuid
        again = client.files.upload(tmp_path / name, resume=False)
        assert again.file_uuid not in (found.file_uuid, other.file_uuid)


async def test_file_uuid_that_is_wanted_early_comes_before_the_bytes(
    cluster: Cluster, asked: list[str]
) -> None:
    told: list[str] = []
    async with async_client_of(cluster) as client:
        record = await client.files.upload(CONTENT, filename=unique(), created=told.append)
        assert told == [record.file_uuid]
    assert asked == SENT_TWICE


def test_command_stores_small_files_by_one_request_each(cluster: Cluster, tmp_path: Path) -> None:
    names = [unique() for _ in range(3)]
    for name in names:
        (tmp_path / name).write_bytes(CONTENT + name.encode())
    before = requests_of(cluster)
    done = cluster.filestore("put", *(str(tmp_path / name) for name in names), "--kind", "backup")
    assert (done.returncode, done.stderr) == (0, b"")
    assert requests_of(cluster) - before == len(names)
    with client_of(cluster) as client:
        assert [stored(client, name) for name in names] == [[CONTENT + name.encode()] for name in names]


def requests_of(cluster: Cluster) -> int:
    """How many requests of files the nodes have answered."""
    found = 0
    for node in cluster.nodes:
        for line in cluster.get("/metrics", node=node, token=None).body.decode().splitlines():
            if line.startswith("filestore_http_requests_total{") and "/api/v1/" in line:
                found += int(float(line.rsplit(" ", 1)[1]))
    return found
