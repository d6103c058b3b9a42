"""The file system of the client: fsspec's own tests, and what they do not ask."""

import io
import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.callbacks import Callback
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from filestore_client.base.errors import Conflict
from filestore_client.filesystem import FilestoreFileSystem
from tests.cluster.connections import options_of
from tests.cluster.harness import Cluster

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_memory")]


def file_system(cluster: Cluster, **more: Any) -> FilestoreFileSystem:
    options = options_of(cluster)
    del options["deadline_s"]
    return FilestoreFileSystem(**options, **more)


@pytest.fixture
def fs(cluster: Cluster) -> FilestoreFileSystem:
    """The same for the whole cluster: fsspec keeps those that were made with the same options."""
    return file_system(cluster)


@pytest.fixture
def bucket(fs: FilestoreFileSystem) -> Iterator[str]:
    """A bucket for one test."""
    name = f"fs-{secrets.token_hex(4)}"
    fs.mkdir(name)
    yield name
    fs.rm(name, recursive=True)


class OfThisCluster(AbstractFixtures):  # type: ignore[misc]
    """What fsspec's tests run on: a folder of a bucket."""

    @pytest.fixture
    def fs(self, cluster: Cluster) -> FilestoreFileSystem:
        return file_system(cluster, auto_mkdir=True)

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(part for part in parts if part)

    @pytest.fixture
    def fs_path(self, fs: FilestoreFileSystem) -> str:
        fs.makedirs("of-fsspec", exist_ok=True)
        return "of-fsspec/folder"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopies(OfThisCluster, AbstractCopyTests):  # type: ignore[misc]
    """From folder to folder."""


class TestDownloads(OfThisCluster, AbstractGetTests):  # type: ignore[misc]
    """From a folder to a local directory."""


class TestUploads(OfThisCluster, AbstractPutTests):  # type: ignore[misc]
    """From a local directory to a folder."""


class TestFiles(OfThisCluster, AbstractOpenTests, AbstractPipeTests):  # type: ignore[misc]
    """Files of a folder."""


def test_file_is_written_listed_read_and_deleted(fs: FilestoreFileSystem, bucket: str) -> None:
    path = f"filestore://{bucket}/a b.csv"
    with fs.open(path, "wb", retention_period=5) as file:
        file.write(b"0123456789")
    assert fs.ls(bucket, detail=False) == [f"{bucket}/a b.csv"]
    (entry,) = fs.ls(bucket)
    assert entry == fs.info(path)
    assert (entry["type"], entry["size"], fs.size(path)) == ("file", 10, 10)
    assert fs.checksum(path) == entry["sha256"]
    assert fs.created(path) == fs.modified(path)
    assert fs.cat(path) == b"0123456789"
    assert fs.cat_file(path, 2, -2) == b"234567"
    assert fs.cat_file(path, -3) == b"789"
    assert fs.cat_file(path, 5, 5) == fs.cat_file(path, 20, 30) == b""
    assert fs.head(path, 3) + fs.tail(path, 3) == b"012789"
    with fs.open(path) as file:
        file.seek(4)
        assert file.read(2) == b"45"
    with fs.open(path, "r") as text:
        assert text.read() == "0123456789"
    assert fs.client.files.get(entry["file_uuid"]).retention_period == 5
    fs.rm(path)
    assert not fs.exists(path)
    assert fs.ls(bucket) == []


def test_root_lists_buckets_and_what_is_not_there_is_told(fs: FilestoreFileSystem, bucket: str) -> None:
    assert bucket in fs.ls("filestore://", detail=False)
    assert fs.isdir(bucket)
    assert fs.isdir("")
    for absent in ("no-such-bucket", "no-such-bucket/file", f"{bucket}/file", f"{bucket}/deeper/file"):
        assert not fs.exists(absent)
        assert not fs.isfile(absent)
        for ask in (fs.info, fs.ls, fs.cat_file, fs.open, fs.rm):
            with pytest.raises(FileNotFoundError):
                ask(absent)
    for act in (fs.open, fs.rm, lambda path: fs.open(path, "wb")):
        with pytest.raises(IsADirectoryError):
            act(bucket)


def test_buckets_are_made_once_and_deleted_when_they_are_empty(fs: FilestoreFileSystem, bucket: str) -> None:
    with pytest.raises(FileExistsError):
        fs.mkdir(bucket)
    with pytest.raises(FileExistsError):
        fs.mkdir("")
    fs.makedirs(bucket, exist_ok=True)
    fs.touch(f"{bucket}/file")
    with pytest.raises(Conflict):
        fs.rmdir(bucket)
    with pytest.raises(ValueError, match="every bucket"):
        fs.rm("", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.pipe("no-such-bucket/file", b"")


def test_newest_of_a_name_is_meant_and_an_id_names_one(fs: FilestoreFileSystem, bucket: str) -> None:
    path = f"{bucket}/lab.csv"
    uuids = []
    for content in (b"first", b"second", b"third"):
        fs.pipe(path, content)
        uuids.append(fs.info(path)["file_uuid"])
    assert fs.cat(path) == b"third"
    assert len(fs.ls(bucket)) == 1
    first = f"filestore://{path}?id={uuids[0]}"
    assert fs.info(first)["size"] == 5
    assert fs.cat(first) == b"first"
    assert fs.cat([first, path]) == {first.removeprefix("filestore://"): b"first", path: b"third"}
    with fs.open(f"{path}?id={uuids[1].upper()}") as file:
        assert file.read() == b"second"
    assert not fs.exists(f"{bucket}/other.csv?id={uuids[0]}")
    fs.rm(first)
    assert not fs.exists(first)
    fs.rm(path)  # with the ones before
    assert not fs.exists(path)


def test_name_may_have_a_question_mark(fs: FilestoreFileSystem, bucket: str) -> None:
    for name in ("what?", "what?id=this", "100%.csv", "ä ö+&#.csv"):
        fs.pipe_file(f"{bucket}/{name}", name.encode())
        assert fs.cat_file(f"{bucket}/{name}") == name.encode()
        assert fs.info(f"{bucket}/{name}")["name"] == f"{bucket}/{name}"


def test_name_like_a_path_with_an_id_is_no_other_path(fs: FilestoreFileSystem, bucket: str) -> None:
    fs.pipe(f"{bucket}/kept", b"kept")
    like_one = f"?id={fs.info(f'{bucket}/kept')['file_uuid']}"
    fs.mkdir(f"{bucket}{like_one}")
    fs.rm(f"{bucket}{like_one}", recursive=True)  # and not what is in the other bucket
    assert not fs.exists(f"{bucket}{like_one}")
    fs.client.files.upload(
        b"other", kind="backup", filename=f"kept{like_one}", bucket_id=fs.info(bucket)["bucket_id"]
    )
    (other,) = set(fs.ls(bucket, detail=False)) - {f"{bucket}/kept"}
    assert fs.cat(other) == b"other"
    fs.rm(other)
    assert fs.cat(f"{bucket}/*") == {f"{bucket}/kept": b"kept"}


def test_hidden_bucket_is_got_by_its_name_only(fs: FilestoreFileSystem, bucket: str, tmp_path: Path) -> None:
    hidden = f".{bucket}"
    fs.mkdir(hidden)
    fs.pipe(f"{hidden}/authorized_keys", b"a key")
    with pytest.raises(ValueError, match="hidden"):
        fs.get(f"?{bucket}", str(tmp_path / "all"), recursive=True)
    fs.get(hidden, str(tmp_path / "one"), recursive=True)
    assert (tmp_path / "one" / "authorized_keys").read_bytes() == b"a key"
    fs.rm(hidden, recursive=True)


def test_patterns_find_files_of_a_bucket(fs: FilestoreFileSystem, bucket: str, tmp_path: Path) -> None:
    for name in ("a1.csv", "a2.csv", "b1.txt"):
        fs.pipe(f"{bucket}/{name}", name.encode())
    assert fs.glob(f"{bucket}/a?.csv") == [f"{bucket}/a1.csv", f"{bucket}/a2.csv"]
    assert fs.glob(f"{bucket}/*") == fs.find(bucket)
    assert [names for _, _, names in fs.walk(bucket)] == [["a1.csv", "a2.csv", "b1.txt"]]
    assert fs.du(bucket) == 18
    fs.get(f"{bucket}/*.csv", f"{tmp_path / 'copies'}/")
    assert sorted(path.name for path in (tmp_path / "copies").iterdir()) == ["a1.csv", "a2.csv"]
    fs.rm(f"{bucket}/a*")
    assert fs.find(bucket) == [f"{bucket}/b1.txt"]


def test_files_and_buckets_are_copied_and_moved(fs: FilestoreFileSystem, bucket: str) -> None:
    other = f"{bucket}-copy"
    for name in ("one", "two"):
        fs.pipe(f"{bucket}/{name}", name.encode())
    fs.copy(f"{bucket}/one", f"{bucket}/three")
    assert fs.cat(f"{bucket}/three") == b"one"
    fs.mv(f"{bucket}/three", f"{bucket}/four")
    assert not fs.exists(f"{bucket}/three")
    fs.copy(bucket, other, recursive=True)
    with pytest.raises(IsADirectoryError):
        fs.cat_file(other)
    assert fs.cat(fs.find(other)) == {
        f"{other}/four": b"one",
        f"{other}/one": b"one",
        f"{other}/two": b"two",
    }
    fs.pipe(f"{other}/one", b"a second of this name")
    fs.rm(other, recursive=True)
    assert not fs.exists(other)


def test_large_file_goes_up_and_down_with_its_progress(
    fs: FilestoreFileSystem, bucket: str, tmp_path: Path
) -> None:
    content = os.urandom(20 << 20)
    (tmp_path / "lab.bin").write_bytes(content)
    up, down = Callback(), Callback()
    fs.put_file(tmp_path / "lab.bin", f"{bucket}/lab.bin", callback=up)
    fs.get_file(f"{bucket}/lab.bin", tmp_path / "new" / "copy.bin", callback=down)
    assert (tmp_path / "new" / "copy.bin").read_bytes() == content
    assert up.value == up.size == down.value == down.size == len(content)
    stream = io.BytesIO()
    fs.get_file(f"{bucket}/lab.bin", stream)
    assert stream.getvalue() == content
    with pytest.raises(FileExistsError):
        fs.put_file(tmp_path / "lab.bin", f"{bucket}/lab.bin", mode="create")
    with pytest.raises(IsADirectoryError):
        fs.put_file(tmp_path / "lab.bin", bucket)


def test_directory_is_put_as_a_bucket_and_got_back(
    fs: FilestoreFileSystem, bucket: str, tmp_path: Path
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for name in ("one", "two"):
        (flat / name).write_bytes(name.encode())
    fs.put(f"{flat}/", bucket, recursive=True)
    fs.get(bucket, str(tmp_path / "back"), recursive=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == {
        "one": b"one",
        "two": b"two",
    }


def test_writer_that_fails_leaves_no_file(fs: FilestoreFileSystem, bucket: str) -> None:
    file = fs.open(f"{bucket}/half", "wb")

    def leave() -> None:
        with file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert not fs.exists(f"{bucket}/half")
    for mode in ("ab", "r+b"):
        with pytest.raises(ValueError, match="never changes"):
            fs.open(f"{bucket}/half", mode)
    with pytest.raises(NotImplementedError):
        fs.touch(f"{bucket}/half", truncate=False)
    with fs.transaction, pytest.raises(NotImplementedError):
        fs.open(f"{bucket}/half", "wb")


def test_fsspec_knows_the_protocol_and_the_environment(
    cluster: Cluster, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.command_environment().items():
        if name.startswith("FILESTORE_"):
            monkeypatch.setenv(name, value)
    with fsspec.open(f"filestore://{bucket}/log.txt.gz", "wt", compression="infer") as file:
        file.write("packed\n")
    with fsspec.open(f"filestore://{bucket}/log.txt.gz", "rt", compression="infer") as file:
        assert file.read() == "packed\n"
    found, path = fsspec.url_to_fs(f"filestore://{bucket}/log.txt.gz")
    assert isinstance(found, FilestoreFileSystem)
    assert found.cat(path)[:2] == b"\x1f\x8b"
    assert found.unstrip_protocol(path) == f"filestore://{bucket}/log.txt.gz"
    assert pickle.loads(pickle.dumps(found)) is found
