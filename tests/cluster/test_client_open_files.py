"""Open files of the client: exceptions, names with the letters of patterns, pickles, forked processes."""

import bz2
import contextlib
import gc
import gzip
import io
import lzma
import pickle
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from filestore_client.filesystem import FilestoreFileSystem
from tests.cluster.connections import options_of
from tests.cluster.harness import Cluster

Opening = Callable[[FilestoreFileSystem, str], Any]


@pytest.fixture
def fs(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FilestoreFileSystem:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, value in cluster.command_environment().items():
        if name.startswith("FILESTORE_"):
            monkeypatch.setenv(name, value)
    options = options_of(cluster)
    del options["deadline_s"]
    return FilestoreFileSystem(**options)


@pytest.fixture
def bucket(fs: FilestoreFileSystem) -> Iterator[str]:
    """A bucket for one test."""
    name = f"fs-{secrets.token_hex(4)}"
    fs.mkdir(name)
    yield name
    fs.rm(name, recursive=True)


class Handles:
    """As pandas writes: what it has opened and wrapped is closed by its own `__exit__`."""

    def __init__(self, fs: FilestoreFileSystem, path: str, compression: str | None) -> None:
        opened = fsspec.open(f"filestore://{path}", "wb").open()
        self.closed_in_order = [opened]
        if compression:
            self.closed_in_order.insert(0, gzip.GzipFile(fileobj=opened, mode="wb"))
        self.file = io.TextIOWrapper(self.closed_in_order[0], encoding="utf-8")
        self.closed_in_order.insert(0, self.file)

    def __enter__(self) -> io.TextIOWrapper:
        return self.file

    def __exit__(self, *_: object) -> None:
        for each in self.closed_in_order:
            each.close()


@contextlib.contextmanager
def in_generator(fs: FilestoreFileSystem, path: str) -> Iterator[Any]:
    file = fs.open(path, "w")
    try:
        yield file
    finally:
        file.close()


def by_fsspec(mode: str, **options: Any) -> Opening:
    return lambda _, path: fsspec.open(f"filestore://{path}", mode, **options)


OPENINGS: dict[str, Opening] = {
    "binary": lambda fs, path: fs.open(path, "wb"),
    "text": lambda fs, path: fs.open(path, "w"),
    "gzip": lambda fs, path: fs.open(path, "wb", compression="gzip"),
    "bz2 text": lambda fs, path: fs.open(path, "wt", compression="bz2", encoding="ascii"),
    "xz by name": lambda fs, path: fs.open(f"{path}.xz", "wb", compression="infer"),
    "zip": lambda fs, path: fs.open(path, "wb", compression="zip"),
    "fsspec binary": by_fsspec("wb"),
    "fsspec text": by_fsspec("w"),
    "fsspec gzip": by_fsspec("wb", compression="gzip"),
    "fsspec bz2 text": by_fsspec("wt", compression="bz2"),
    "wrapped": lambda fs, path: io.TextIOWrapper(fs.open(path, "wb")),
    "wrapped twice": lambda fs, path: io.TextIOWrapper(io.BufferedWriter(fs.open(path, "wb"))),
    "closing": lambda fs, path: contextlib.closing(fs.open(path, "w")),
    "generator": in_generator,
    "pandas": lambda fs, path: Handles(fs, path, None),
    "pandas gzip": lambda fs, path: Handles(fs, path, "gzip"),
}


def write(opened: Any, *, fails: bool) -> None:
    with opened as file:
        try:
            file.write(b"half")
        except TypeError:
            file.write("half")
        if fails:
            raise ZeroDivisionError


def plain(content: bytes) -> bytes:
    """Decompressed, by how it begins."""
    known = {b"\x1f\x8b": gzip.decompress, b"BZh": bz2.decompress, b"\xfd7z": lzma.decompress}
    return next((known[magic](content) for magic in known if content.startswith(magic)), content)


def test_exception_in_a_with_statement_leaves_no_file_however_it_was_opened(
    fs: FilestoreFileSystem, bucket: str
) -> None:
    for number, (name, opening) in enumerate(OPENINGS.items()):
        with pytest.raises(ZeroDivisionError):
            write(opening(fs, f"{bucket}/{number}"), fails=True)
        assert fs.ls(bucket) == [], name
    for number, (name, opening) in enumerate(OPENINGS.items()):
        write(opening(fs, f"{bucket}/{number}"), fails=False)
        (stored,) = fs.ls(bucket, detail=False)
        assert name == "zip" or plain(fs.cat(stored)) == b"half", name
        fs.rm_file(stored)


def test_exception_that_is_handled_already_ends_no_file(fs: FilestoreFileSystem, bucket: str) -> None:
    """Who writes a report of an error, or ends a file when its source has ended, wants it."""
    with contextlib.suppress(ZeroDivisionError), contextlib.ExitStack() as stack:
        stack.callback(lambda: write(fs.open(f"{bucket}/at-the-exit", "w"), fails=False))
        raise ZeroDivisionError
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        write(fs.open(f"{bucket}/report", "w"), fails=False)
    file = fs.open(f"{bucket}/to-the-end", "w")
    try:
        raise StopIteration
    except StopIteration:
        file.close()
    names = ["at-the-exit", "report", "to-the-end"]
    assert fs.ls(bucket, detail=False) == [f"{bucket}/{name}" for name in names]


def test_file_that_is_collected_before_it_was_closed_is_given_up(
    fs: FilestoreFileSystem, bucket: str
) -> None:
    for mode, compression in (("wb", None), ("w", None), ("wb", "gzip"), ("w", "bz2")):
        file = fs.open(f"{bucket}/lost", mode, compression=compression)
        file.write(b"half" if mode == "wb" else "half")
        del file
        gc.collect()
    write(fs.open(f"{bucket}/kept", "w"), fails=False)
    assert fs.ls(bucket, detail=False) == [f"{bucket}/kept"]


def test_path_that_names_a_file_is_no_pattern(fs: FilestoreFileSystem, bucket: str, tmp_path: Path) -> None:
    named, other = f"{bucket}/report[1].txt", f"{bucket}/report1.txt"
    fs.pipe({named: b"named", other: b"other"})
    assert fs.cat(named) == b"named"
    fs.get(named, str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == b"named"
    (tmp_path / "into").mkdir()
    fs.get(named, str(tmp_path / "into"))
    assert (tmp_path / "into" / "report[1].txt").read_bytes() == b"named"
    fs.get(f"{named}?id={fs.info(named)['file_uuid']}", str(tmp_path / "by-id"))
    assert (tmp_path / "by-id").read_bytes() == b"named"
    fs.copy(named, f"{bucket}/copy")
    assert fs.cat(f"{bucket}/copy") == b"named"
    assert fs.cat([named, f"{bucket}/cop?"]) == {named: b"named", f"{bucket}/copy": b"named"}
    fs.mv(named, f"{bucket}/moved*")
    assert fs.cat(f"{bucket}/moved*") == b"named"
    assert fs.cat(named) == {other: b"other"}
    fs.pipe_file(f"{bucket}/moved-2", b"another")
    fs.rm(f"{bucket}/moved*")
    assert sorted(fs.ls(bucket, detail=False)) == [f"{bucket}/copy", f"{bucket}/moved-2", other]
    fs.rm(f"{bucket}/moved*")
    assert not fs.exists(f"{bucket}/moved-2")
    fs.mkdir(f"{bucket}[1]")
    fs.pipe_file(f"{bucket}[1]/in it", b"in it")
    fs.get(f"{bucket}[1]", str(tmp_path / "all"), recursive=True)
    assert [each.name for each in tmp_path.glob("all/**/*") if each.is_file()] == ["in it"]
    fs.rm(f"{bucket}[1]", recursive=True)
    assert fs.exists(bucket)
    assert not fs.exists(f"{bucket}[1]")


def test_open_file_has_what_fsspec_expects_and_is_pickled(fs: FilestoreFileSystem, bucket: str) -> None:
    path = f"{bucket}/rows"
    with fs.open(path, "wb") as written:
        written.write(b"one\ntwo\nthree\n")
        assert (written.fs, written.path, written.size, written.mode) == (fs, path, 14, "wb")
    with fs.open(path) as file:
        assert (file.fs, file.path, file.size, file.mode) == (fs, path, 14, "rb")
        assert file.readline() == b"one\n"
        pickled = pickle.dumps(file)
    fs.pipe_file(path, b"newer content of the name")
    with pickle.loads(pickled) as again:
        assert again.read() == b"two\nthree\n"
    assert fs.read_block(f"{path}", 3, 6, delimiter=b" ") == b"content "


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec closes its map late
def test_file_is_read_through_the_block_cache_of_fsspec(
    fs: FilestoreFileSystem, bucket: str, tmp_path: Path
) -> None:
    fs.pipe_file(f"{bucket}/cached", bytes(5 << 20) + b"end")
    storage = {"cache_storage": str(tmp_path)}
    with fsspec.open(f"blockcache::filestore://{bucket}/cached", "rb", blockcache=storage) as cached:
        cached.seek(-3, 2)
        assert cached.read() == b"end"


FORKED = """
import gc, os, signal, sys
from filestore_client import Client
from filestore_client.filesystem import FilestoreFileSystem

signal.alarm(60)
bucket, fs, closed = sys.argv[1], FilestoreFileSystem(), Client.from_environment()
closed.close()
path = bucket + "/before"
fs.pipe_file(path, bytes(9 << 20))
file, raw = fs.open(path), fs.client.files.open(fs.info(path)["file_uuid"])
writer = fs.open(bucket + "/of-the-parent", "wb")
listed = fs.client.buckets.list()
assert file.read(5) == raw.read(5) == bytes(5) and next(listed)
writer.write(b"one ")


def refused(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError(call)


if not (child := os.fork()):
    signal.alarm(60)
    assert fs.size(path) == 9 << 20
    assert len(file.read()) == (9 << 20) - 5
    with fs.open(bucket + "/of-the-child", "w") as own:
        own.write("child")
    for call in (lambda: raw.read(5 << 20), lambda: writer.write(b"x"), lambda: next(listed)):
        assert "forked" in refused(call)
    assert "closed" in refused(closed.whoami)
    del file, raw, writer, listed
    gc.collect()
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert fs.cat(bucket + "/of-the-child") == b"child"
assert len(file.read()) == (9 << 20) - 5
assert len(raw.read()) == (9 << 20) - 5
writer.write(b"two")
writer.close()
assert fs.cat(bucket + "/of-the-parent") == b"one two"
"""


def test_process_that_was_forked_goes_on_and_cuts_off_nothing_of_its_parent(
    cluster: Cluster, fs: FilestoreFileSystem, bucket: str, tmp_path: Path
) -> None:
    """As the workers of gunicorn, multiprocessing and PyTorch do."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, bucket],
        env=cluster.command_environment(XDG_STATE_HOME=str(tmp_path)),
        capture_output=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
