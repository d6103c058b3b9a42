"""The file system of the client has real directories: folders of a bucket."""

import errno
import secrets
from collections.abc import Iterator
from pathlib import Path

import fsspec.generic
import pytest
from fsspec.callbacks import Callback

from filestore_client.base.errors import Conflict, InvalidRequest
from filestore_client.filesystem import FilestoreFileSystem
from tests.cluster.connections import options_of
from tests.cluster.harness import Cluster

pytestmark = pytest.mark.usefixtures("own_memory")

FILES = ("lab/r1/startup.cfg", "lab/r2/startup.cfg", "lab/topology", "notes")


@pytest.fixture
def fs(cluster: Cluster) -> FilestoreFileSystem:
    options = options_of(cluster)
    del options["deadline_s"]
    return FilestoreFileSystem(**options)


@pytest.fixture
def bucket(fs: FilestoreFileSystem) -> Iterator[str]:
    """A bucket with FILES, each of which contains its path."""
    name = f"folders-{secrets.token_hex(4)}"
    fs.mkdir(name)
    for path in FILES:
        fs.pipe(f"{name}/{path}", path.encode())
    yield name
    fs.rm(name, recursive=True)


def inside(fs: FilestoreFileSystem, bucket: str, folder: str = "") -> list[str]:
    """The paths of the files in a bucket."""
    return [path.removeprefix(f"{bucket}/") for path in fs.find(f"{bucket}/{folder}")]


def test_folders_are_directories(fs: FilestoreFileSystem, bucket: str) -> None:
    assert fs.ls(bucket, detail=False) == [f"{bucket}/lab", f"{bucket}/notes"]
    assert fs.ls(f"filestore://{bucket}/lab/", detail=False) == [
        f"{bucket}/lab/r1",
        f"{bucket}/lab/r2",
        f"{bucket}/lab/topology",
    ]
    (entry,) = fs.ls(f"{bucket}/lab/r1")
    assert entry == fs.info(f"{bucket}/lab/r1/startup.cfg")
    assert fs.ls(f"{bucket}/lab/topology") == [fs.info(f"{bucket}/lab/topology")]
    assert fs.cat(f"{bucket}/lab/r2/startup.cfg") == b"lab/r2/startup.cfg"
    assert fs.info(f"{bucket}/lab/r1") == {"name": f"{bucket}/lab/r1", "size": 0, "type": "directory"}
    for path, is_directory in ((f"{bucket}/lab", True), (f"{bucket}/lab/topology", False)):
        assert (fs.isdir(path), fs.isfile(path)) == (is_directory, not is_directory)
    for absent in (f"{bucket}/la", f"{bucket}/lab/r1/x", f"{bucket}/lab/topology/x", f"{bucket}/lab/r3"):
        assert not fs.exists(absent)
        assert fs.find(absent) == []
        with pytest.raises(FileNotFoundError):
            fs.ls(absent)
    for act in (fs.open, fs.cat_file, fs.rm_file, fs.rm):
        with pytest.raises(IsADirectoryError):
            act(f"{bucket}/lab")


def test_trees_are_found_in_one_list(fs: FilestoreFileSystem, bucket: str) -> None:
    assert inside(fs, bucket) == sorted(FILES)
    assert inside(fs, bucket, "lab/r1") == ["lab/r1/startup.cfg"]
    assert fs.find(f"{bucket}/lab", withdirs=True) == [
        f"{bucket}/{path}" for path in ("lab", "lab/r1", *FILES[:1], "lab/r2", *FILES[1:3])
    ]
    assert fs.find(f"{bucket}/notes") == [f"{bucket}/notes"]
    assert fs.find(bucket, maxdepth=1) == [f"{bucket}/notes"]
    assert fs.find(bucket, maxdepth=2) == [f"{bucket}/lab/topology", f"{bucket}/notes"]
    assert fs.find(bucket, maxdepth=2, detail=True)[f"{bucket}/notes"] == fs.info(f"{bucket}/notes")
    assert set(fs.find("", withdirs=True, maxdepth=1)) >= {bucket}
    assert fs.glob(f"{bucket}/*/*/*.cfg") == [f"{bucket}/{path}" for path in FILES[:2]]
    assert fs.glob(f"{bucket}/*") == [f"{bucket}/lab", f"{bucket}/notes"]
    assert fs.glob(f"{bucket}/**/startup.cfg") == [f"{bucket}/{path}" for path in FILES[:2]]
    assert fs.glob(f"{bucket}/lab/r[2]/*") == [f"{bucket}/lab/r2/startup.cfg"]
    assert [*fs.walk(f"{bucket}/lab")] == [
        (f"{bucket}/lab", ["r1", "r2"], ["topology"]),
        (f"{bucket}/lab/r1", [], ["startup.cfg"]),
        (f"{bucket}/lab/r2", [], ["startup.cfg"]),
    ]
    assert fs.du(f"{bucket}/lab") == sum(len(path) for path in FILES[:3])
    assert fs.du(bucket, total=False)[f"{bucket}/notes"] == len("notes")
    with pytest.raises(ValueError, match="maxdepth"):
        fs.find(bucket, maxdepth=0)


def test_tree_goes_up_and_comes_back(fs: FilestoreFileSystem, bucket: str, tmp_path: Path) -> None:
    source, up, down = tmp_path / "source", Callback(), Callback()
    for path in ("a/b/c", "a/b/d", "a/e", "[f]/g?", "h"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(path.encode() * 9000)
    (source / "empty").mkdir()
    fs.put(f"{source}/", f"filestore://{bucket}/copies/1", recursive=True, callback=up)
    fs.put(str(source), f"{bucket}/copies/", recursive=True)
    assert inside(fs, bucket, "copies") == sorted(
        f"copies/{top}/{path}" for top in ("1", "source") for path in ("a/b/c", "a/b/d", "a/e", "[f]/g?", "h")
    )
    fs.get(f"{bucket}/copies/1", str(tmp_path / "back"), recursive=True, callback=down)
    for path in ("a/b/c", "a/b/d", "a/e", "[f]/g?", "h"):
        assert (tmp_path / "back" / path).read_bytes() == (source / path).read_bytes()
    assert up.size == up.value == len([*source.rglob("*")]) + 1
    assert down.size == down.value == up.size - 1  # a directory without files is not stored
    fs.get(f"{bucket}/copies/1/a/*", f"{tmp_path}/some/")
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["e"]
    fs.put([str(source / "h"), str(source / "a" / "e")], f"{bucket}/list/")
    assert inside(fs, bucket, "list") == ["list/e", "list/h"]


def test_tree_is_copied(fs: FilestoreFileSystem, bucket: str) -> None:
    fs.cp(f"{bucket}/lab", f"{bucket}/copy", recursive=True)
    fs.cp(f"{bucket}/lab/topology", f"{bucket}/copy/r1/")
    assert inside(fs, bucket, "copy") == [
        *("copy/r1/startup.cfg", "copy/r1/topology", "copy/r2/startup.cfg", "copy/topology")
    ]
    assert fs.cat(f"{bucket}/copy/r2/startup.cfg") == b"lab/r2/startup.cfg"
    with pytest.raises(FileNotFoundError):
        fs.cp(f"{bucket}/lab", "no-such-bucket/copy", recursive=True)
    with pytest.raises(FileNotFoundError):
        fs.cp(f"{bucket}/absent", f"{bucket}/copy")


def test_moved_file_is_renamed_and_not_copied(fs: FilestoreFileSystem, bucket: str) -> None:
    before = fs.info(f"{bucket}/lab/r1/startup.cfg")["file_uuid"]
    fs.mv(f"{bucket}/lab/r1/startup.cfg", f"{bucket}/old/r1.cfg")
    assert fs.info(f"{bucket}/old/r1.cfg")["file_uuid"] == before
    assert not fs.exists(f"{bucket}/lab/r1")
    fs.mv(f"{bucket}/old/r1.cfg", f"{bucket}/")
    assert fs.info(f"{bucket}/r1.cfg")["file_uuid"] == before
    fs.mv(f"{bucket}/r1.cfg", f"{bucket}/lab")  # into the folder that is there
    assert fs.info(f"{bucket}/lab/r1.cfg")["file_uuid"] == before
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{bucket}/r1.cfg", f"{bucket}/lab")


def test_moved_tree_is_renamed(fs: FilestoreFileSystem, bucket: str) -> None:
    before = {entry["file_uuid"] for entry in fs.find(f"{bucket}/lab", detail=True).values()}
    with pytest.raises(IsADirectoryError):
        fs.mv(f"{bucket}/lab", f"{bucket}/moved")
    fs.mv(f"{bucket}/lab", f"{bucket}/moved/deep", recursive=True)
    assert inside(fs, bucket) == sorted(["notes", *(f"moved/deep/{path[4:]}" for path in FILES[:3])])
    assert {entry["file_uuid"] for entry in fs.find(f"{bucket}/moved", detail=True).values()} == before
    other = f"{bucket}-other"
    fs.mkdir(other)
    fs.mv(f"{bucket}/moved/deep", f"{other}/lab", recursive=True)
    assert inside(fs, bucket) == ["notes"]
    assert inside(fs, other) == sorted(FILES[:3])
    fs.mv(other, f"{bucket}/whole", recursive=True)
    assert not fs.exists(other)
    assert fs.cat(f"{bucket}/whole/lab/topology") == b"lab/topology"


def test_every_version_moves_and_the_moved_one_is_the_newest(fs: FilestoreFileSystem, bucket: str) -> None:
    fs.pipe(f"{bucket}/lab/topology", b"second")
    fs.pipe(f"{bucket}/new", b"made later than what is moved to it")
    fs.mv(f"{bucket}/lab/topology", f"{bucket}/new")
    assert not fs.exists(f"{bucket}/lab/topology")
    assert fs.cat(f"{bucket}/new") == b"second"
    bucket_id = fs.info(bucket)["bucket_id"]
    versions = [*fs.client.files.in_bucket(bucket_id, name="new")]
    assert [fs.cat(f"{bucket}/new?id={version.file_uuid}") for version in versions] == [
        b"lab/topology",
        b"made later than what is moved to it",
        b"second",
    ]
    fs.mv(f"{bucket}/new?id={versions[0].file_uuid}", f"{bucket}/first")
    assert fs.cat([f"{bucket}/first", f"{bucket}/new"]) == {
        f"{bucket}/first": b"lab/topology",
        f"{bucket}/new": b"second",
    }


def test_deleted_file_is_gone_with_its_versions(fs: FilestoreFileSystem, bucket: str) -> None:
    path = f"{bucket}/lab/topology"
    first = fs.info(path)["file_uuid"]
    fs.pipe(path, b"second")
    fs.pipe(path, b"third")
    assert fs.cat(f"{path}?id={first}") == b"lab/topology"
    fs.rm(f"{path}?id={fs.info(path)['file_uuid']}")
    assert fs.cat(path) == b"second"
    fs.rm(path)
    assert not fs.exists(path)
    assert not fs.exists(f"{path}?id={first}")


def test_folder_is_deleted_with_what_is_in_it(fs: FilestoreFileSystem, bucket: str) -> None:
    fs.pipe(f"{bucket}/lab/r1/startup.cfg", b"second")
    fs.rm(f"{bucket}/lab", recursive=True, maxdepth=1)
    assert inside(fs, bucket) == ["lab/r1/startup.cfg", "lab/r2/startup.cfg", "notes"]
    fs.rm(f"{bucket}/lab/r*", recursive=True)
    assert inside(fs, bucket) == ["notes"]
    assert not fs.exists(f"{bucket}/lab")
    for absent in (f"{bucket}/lab", f"{bucket}/lab/*"):
        with pytest.raises(FileNotFoundError):
            fs.rm(absent, recursive=True)
    fs.rm(bucket, recursive=True, maxdepth=1)
    assert fs.ls(bucket) == []


def test_backup_is_deleted_after_those_that_build_on_it(fs: FilestoreFileSystem, bucket: str) -> None:
    fields = {"bucket_id": fs.info(bucket)["bucket_id"], "path": "chain"}
    full = fs.client.files.upload(b"full", filename="a", **fields)
    chained = fields | {"backup_type": "incremental", "parent_backup_uuid": full.file_uuid}
    fs.client.files.upload(b"changes", filename="a", **chained)
    other = fs.client.files.upload(b"changes", filename="b", **chained)
    with pytest.raises(Conflict):
        fs.rm(f"{bucket}/chain/a")
    assert fs.exists(f"{bucket}/chain/b")
    assert fs.client.files.get(other.file_uuid).status == "available"
    fs.rm(f"{bucket}/chain", recursive=True)
    assert not fs.exists(f"{bucket}/chain")


def test_folder_needs_no_making(fs: FilestoreFileSystem, bucket: str) -> None:
    fs.mkdir(f"{bucket}/new/deep")
    fs.makedirs(f"{bucket}/new/deep", exist_ok=True)
    assert not fs.exists(f"{bucket}/new")  # as in other object stores
    fs.rmdir(f"{bucket}/new/deep")
    for there in (f"{bucket}/lab", f"{bucket}/notes"):
        with pytest.raises(FileExistsError):
            fs.makedirs(there)
    fs.makedirs(f"{bucket}/lab", exist_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{bucket}-no/new", create_parents=False)
    with pytest.raises(OSError, match="not empty") as told:
        fs.rmdir(f"{bucket}/lab")
    assert told.value.errno == errno.ENOTEMPTY
    with pytest.raises(NotADirectoryError):
        fs.rmdir(f"{bucket}/notes")
    with pytest.raises(FileNotFoundError):
        fs.rmdir(f"{bucket}-no/new")
    assert inside(fs, bucket) == sorted(FILES)


def test_names_that_the_cluster_refuses_are_refused(fs: FilestoreFileSystem, bucket: str) -> None:
    for bad in ("lab/../notes", "lab/./topology", "lab//topology", f"{'x' * 256}/y", f"lab/{'x' * 256}"):
        assert not fs.exists(f"{bucket}/{bad}")
        with pytest.raises(InvalidRequest):
            fs.pipe(f"{bucket}/{bad}", b"")
    assert inside(fs, bucket) == sorted(FILES)


def test_folder_like_a_path_with_an_id_is_no_other_path(fs: FilestoreFileSystem, bucket: str) -> None:
    like_one = f"notes?id={fs.info(f'{bucket}/notes')['file_uuid']}"
    fs.pipe(f"{bucket}/{like_one}/x", b"x")
    assert fs.ls(bucket, detail=False) == [f"{bucket}/lab", f"{bucket}/notes"]
    assert f"{bucket}/{like_one}" not in fs.find(bucket, withdirs=True)
    assert fs.cat(f"{bucket}/{like_one}/x") == b"x"


def test_file_and_folder_may_have_one_path(fs: FilestoreFileSystem, bucket: str) -> None:
    fs.pipe(f"{bucket}/lab", b"a file")
    assert fs.isfile(f"{bucket}/lab")
    assert fs.cat(f"{bucket}/lab") == b"a file"
    assert inside(fs, bucket, "lab") == sorted(FILES[:3])
    fs.rm_file(f"{bucket}/lab")
    assert fs.isdir(f"{bucket}/lab")


def test_hidden_folder_is_got_only_if_it_is_named(
    fs: FilestoreFileSystem, bucket: str, tmp_path: Path
) -> None:
    fs.pipe(f"{bucket}/me/.ssh/authorized_keys", b"a key")
    for path in (f"{bucket}/me", f"{bucket}/*"):
        with pytest.raises(ValueError, match=r"me/\.ssh.* is hidden"):
            fs.get(path, f"{tmp_path}/all", recursive=True)
    assert [*tmp_path.glob("all")] == []
    fs.get(f"{bucket}/me/.ssh", f"{tmp_path}/named", recursive=True)
    fs.get(f"{bucket}/me", f"{tmp_path}/told", recursive=True, hidden=True)
    for path in ("named/authorized_keys", "told/.ssh/authorized_keys"):
        assert (tmp_path / path).read_bytes() == b"a key"


def test_bucket_that_was_made_again_is_found(cluster: Cluster, fs: FilestoreFileSystem, bucket: str) -> None:
    again = f"{bucket}-again"
    fs.pipe({f"{bucket}/x": b"x"})
    fs.mkdir(again)
    assert fs.ls(again) == []
    cluster.request("DELETE", f"/buckets/{fs.info(again)['bucket_id']}")
    assert not fs.exists(f"{again}/x")
    bucket_id = cluster.post("/buckets", {"name": again}).json["bucket_id"]
    assert fs.ls(again) == []
    cluster.request("DELETE", f"/buckets/{bucket_id}")
    bucket_id = cluster.post("/buckets", {"name": again}).json["bucket_id"]
    fs.client.files.upload(b"x", filename="x", bucket_id=bucket_id)
    assert fs.cat(f"{again}/x") == b"x"
    fs.rm(again, recursive=True)


def test_tools_of_fsspec_work_on_folders(
    cluster: Cluster, fs: FilestoreFileSystem, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.command_environment().items():
        monkeypatch.setenv(name, value)
    for path in FILES:
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_text(path)
    for _ in range(2):
        fsspec.generic.rsync(f"file://{tmp_path}/source", f"filestore://{bucket}/copy")
    bucket_id = fs.info(bucket)["bucket_id"]
    again = [*fs.client.files.in_bucket(bucket_id, path="copy", recursive="1")]
    assert sorted(f"{file.path}/{file.filename}" for file in again) == [f"copy/{path}" for path in FILES]
    keys = fs.get_mapper(f"{bucket}/copy")
    assert dict(keys) == {path: path.encode() for path in FILES}
    keys["lab/r1/startup.cfg"] = b"changed"
    del keys["lab/r1/startup.cfg"]
    assert "lab/r1/startup.cfg" not in keys
    within = fsspec.filesystem("dir", path=f"{bucket}/copy", fs=fs)
    within.mv("lab", "old", recursive=True)
    assert within.find("") == ["notes", "old/r2/startup.cfg", "old/topology"]
