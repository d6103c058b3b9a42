"""A client whose token came from a file goes on when the token ends and the file holds another one."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from filestore_client import Client
from filestore_client.base.errors import Unauthorized
from tests.cluster.connections import client_of
from tests.cluster.harness import Cluster
from tests.cluster.renewed import Renewed

CONTENT = os.urandom(300_000)


@pytest.fixture
def renewed(cluster: Cluster, tmp_path: Path) -> Renewed:
    return Renewed(cluster, tmp_path)


@pytest.fixture
def client(cluster: Cluster, renewed: Renewed) -> Iterator[Client]:
    with client_of(cluster, token=renewed.file) as made:
        yield made


def put(client: Client, filename: str, content: bytes = CONTENT) -> str:
    return client.files.upload([content], filename=filename).file_uuid


@pytest.mark.parametrize(
    "work",
    [
        lambda client, _: client.whoami(),
        lambda client, file_uuid: client.shares.create(file_uuid),  # a request that is never repeated blindly
        lambda client, _: put(client, "small", b"small"),
        lambda client, _: put(client, "in pieces"),
        lambda client, file_uuid: b"".join(client.files.read(file_uuid)),
        lambda client, _: [file.file_uuid for file in client.files.list()],
        lambda client, file_uuid: client.files.delete(file_uuid),
    ],
    ids=["whoami", "share", "small", "in pieces", "read", "list", "delete"],
)
def test_each_request_goes_on_with_the_token_that_the_file_holds_now(
    renewed: Renewed, client: Client, work: Callable[[Client, str], object]
) -> None:
    file_uuid = put(client, "before")
    renewed.end()
    renewed.renew()
    work(client, file_uuid)


def test_ranges_of_a_download_go_on(renewed: Renewed, client: Client, tmp_path: Path) -> None:
    file_uuid = put(client, "before")
    renewed.end()
    renewed.renew()
    path = client.files.download(file_uuid, tmp_path / "there")
    assert path is not None
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(CONTENT).digest()


def test_same_token_in_the_file_is_refused_at_once(renewed: Renewed, client: Client) -> None:
    renewed.end()
    with pytest.raises(Unauthorized):
        client.whoami()
    for useless in ("", "two\nlines", "é"):
        renewed.file.write_text(useless)
        with pytest.raises(Unauthorized):
            client.whoami()
    renewed.file.unlink()
    with pytest.raises(Unauthorized):
        client.whoami()
    renewed.renew()
    assert client.whoami()


def test_token_that_was_given_as_a_text_stays(cluster: Cluster, renewed: Renewed) -> None:
    with client_of(cluster, token=renewed.file.read_text().strip()) as client:
        renewed.end()
        renewed.renew()
        with pytest.raises(Unauthorized):
            client.whoami()


def test_file_system_of_the_environment_goes_on(
    cluster: Cluster, renewed: Renewed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.command_environment(FILESTORE_TOKEN_FILE=str(renewed.file)).items():
        monkeypatch.setenv(name, value)
    files = fsspec.filesystem("filestore", skip_instance_cache=True)
    buckets = files.ls("", detail=False)
    renewed.end()
    renewed.renew()
    assert files.ls("", detail=False) == buckets != []
    files.client.close()
