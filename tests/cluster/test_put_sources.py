"""`filestore put` of what changes, blocks, or has no proper name, and what an interruption leaves of it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.processes import wait_until
from tests.cluster.harness import FILESTORE, Cluster, run_filestore
from tests.cluster.throttle import ThrottlingProxy

MIB = 1 << 20
SIZE_BYTES = 16 * MIB


@dataclass(frozen=True)
class Put:
    """An upload through a proxy; `again` is the same command."""

    process: subprocess.Popen[bytes]
    way: ThrottlingProxy
    arguments: list[str]
    environment: dict[str, str]

    def end(self) -> int:
        """What is left goes quickly; the exit code."""
        self.way.bytes_per_s = 1 << 30
        return self.process.wait(timeout=60)

    def again(self, **changes: str) -> subprocess.CompletedProcess[bytes]:
        return run_filestore(self.arguments, self.environment | changes)


@contextmanager
def begun(cluster: Cluster, path: Path, *, project: str) -> Iterator[Put]:
    """An upload of which a part has been sent."""
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=2 * MIB) as way:
        arguments = ["put", str(path), "--only-url", "--project-id", project]
        environment = cluster.command_environment(FILESTORE_URL=way.url)
        process = subprocess.Popen([FILESTORE, *arguments], env=environment, stderr=subprocess.PIPE)
        try:
            wait_until(lambda: way.passed_bytes > 2 * MIB, what="the first bytes", timeout_s=30)
            yield Put(process, way, arguments, environment)
        finally:
            process.kill()
            process.communicate()


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(SIZE_BYTES))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def truncate(path: Path) -> None:
    os.truncate(path, SIZE_BYTES // 2)


@pytest.mark.parametrize(
    "change", [overwrite, *(pytest.param(each, marks=pytest.mark.long) for each in (append, truncate))]
)
def test_file_that_changes_is_told_and_nothing_of_it_is_stored(
    cluster: Cluster, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path, project = tmp_path / "lab.bin", f"changes-{change.__name__}"
    path.write_bytes(os.urandom(SIZE_BYTES))
    with begun(cluster, path, project=project) as put:
        change(path)
        assert put.end() == 5
        assert cluster.get(f"/project-files?project_id={project}").json["project_files"] == []
        done = put.again()
    assert done.returncode == 0, done.stderr
    assert cluster.get(f"/files/{done.stdout.decode().strip()}").body == path.read_bytes()


def test_file_that_says_it_is_empty_and_is_not_is_told(cluster: Cluster) -> None:
    done = cluster.filestore("put", "/proc/cpuinfo")
    assert done.returncode == 5
    assert done.stderr.startswith(b"filestore: file_changed: ")


def test_file_replaced_by_one_of_equal_size_and_date_is_not_mixed_with_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "lab.bin"
    path.write_bytes(os.urandom(SIZE_BYTES))
    facts = path.stat()
    with begun(cluster, path, project="mixed") as put:
        put.process.kill()
        put.end()
        overwrite(path)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        done = put.again()
    assert done.returncode == 0, done.stderr
    assert cluster.get(f"/files/{done.stdout.decode().strip()}").body == path.read_bytes()


def test_run_with_a_wrong_token_forgets_no_unfinished_upload(cluster: Cluster, tmp_path: Path) -> None:
    path, token = tmp_path / "lab.bin", tmp_path / "token"
    path.write_bytes(os.urandom(SIZE_BYTES))
    token.write_text("wrong")
    with begun(cluster, path, project="token") as put:
        put.process.kill()
        put.end()
        (unfinished,) = cluster.get("/project-files?project_id=token").json["project_files"]
        assert put.again(FILESTORE_TOKEN_FILE=str(token)).returncode == 3
        assert put.again().stdout.decode().strip() == unfinished["file_uuid"]


def test_pipe_by_name_is_refused_at_once(cluster: Cluster, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = cluster.filestore("put", str(tmp_path / "pipe"))
    assert done.returncode == 2
    assert done.stderr.startswith(b"filestore: invalid_request: ")


def test_name_that_is_no_text_fails_alone_and_goes_with_another(cluster: Cluster, tmp_path: Path) -> None:
    odd, plain = Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff")), tmp_path / "plain"
    odd.write_bytes(b"odd")
    plain.write_bytes(b"plain")
    done = cluster.filestore("put", str(odd), str(plain))
    assert done.returncode == 2
    assert b"invalid_request" in done.stderr
    assert b"Traceback" not in done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert cluster.filestore("put", str(odd), "--filename", "good").returncode == 0


@pytest.mark.parametrize("name", ["", *(pytest.param(each, marks=pytest.mark.long) for each in (".", "/"))])
def test_name_that_is_none_is_refused_in_one_line(cluster: Cluster, name: str) -> None:
    for arguments in ((name,), (name, "--filename", "x")):
        done = cluster.filestore("put", *arguments)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"filestore: invalid_request: ")
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "loaded", ["ca.errors", "filestore_client.base.transport", "filestore_client.transfer.upload_memory"]
)
def test_interrupt_while_the_command_is_loaded_ends_it_like_any_other(cluster: Cluster, loaded: str) -> None:
    process = subprocess.Popen(
        [FILESTORE, "put", "-"],
        env=cluster.command_environment(
            PYTHONPROFILEIMPORTTIME="1"
        ),  # a line for each module that was loaded
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pipesize=4096,  # it cannot be far beyond what was read
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # as below
    )
    try:
        assert process.stderr is not None
        seen = ""
        while not seen.rstrip().endswith(loaded):
            seen = process.stderr.readline()
            assert seen, "it ended by itself"
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().splitlines()
        assert [line for line in rest if not line.startswith("import time:")] == ["", "interrupted"]
        assert process.wait(timeout=10) == 130
    finally:
        process.kill()
        process.communicate()


# What the interrupt finds under way while a class of the standard library is made: Python 3.11 makes another
# error of what is raised there.
INTERRUPTED_IN_A_CLASS = """
import functools, sys
from deploy import entry
def interrupt(*_):
    raise KeyboardInterrupt
functools.cached_property.__set_name__ = interrupt
sys.argv = ["filestore", "put", "-"]
entry.main()
"""


def test_interrupt_in_the_making_of_a_class_is_one(cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_A_CLASS],
        env=cluster.command_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (130, b"\ninterrupted\n")


@pytest.mark.parametrize("arguments", [("put", "-", "--filename", "waits"), ("get", "", "-o", "-")])
def test_interrupt_ends_a_command_that_waits_for_a_pipe(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    arguments = tuple(text or cluster.store(bytes(MIB)) for text in arguments)
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [FILESTORE, *arguments],
        env=cluster.command_environment(),
        stdin=read_end,
        stdout=write_end,
        stderr=subprocess.PIPE,
        # A shell makes what it starts in the background ignore SIGINT, and tests may run there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_until(lambda: waits_for_a_pipe(process.pid), what="a thread that waits", timeout_s=30)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=10) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b"\ninterrupted\n"
    finally:
        process.kill()
        process.communicate()
        os.close(read_end)
        os.close(write_end)


def waits_for_a_pipe(pid: int) -> bool:
    """Whether a thread of this process is held up by a pipe."""
    waiting = ("pipe_read", "pipe_write", "anon_pipe_read", "anon_pipe_write")
    threads = Path(f"/proc/{pid}/task").iterdir()
    return any((thread / "wchan").read_text() in waiting for thread in threads)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_command_without_a_standard_stream_does_its_work(
    cluster: Cluster, tmp_path: Path, closed: int
) -> None:
    path = tmp_path / "lab.bin"
    path.write_bytes(b"content")
    program = f"import os, sys; os.close({closed}); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, FILESTORE, "put", str(path), "--project-id", f"closed-{closed}"],
        env=cluster.command_environment(),
        check=False,
    )
    assert done.returncode == 0
    (record,) = cluster.get(f"/project-files?project_id=closed-{closed}").json["project_files"]
    assert record["status"] == "available"


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.1:8080",
        "http://node-1:8080",
        "ftp://127.0.0.1",
        "127.0.0.1:8080",
        "https://",
        "https://127.0.0.1:99999",
        "https://u:p@127.0.0.1",
        "https://127.0.0.1/api",
    ],
)
def test_url_that_cannot_be_one_is_refused_before_anything_is_sent(cluster: Cluster, url: str) -> None:
    done = run_filestore(["ls"], cluster.command_environment(FILESTORE_URL=url))
    assert done.returncode == 2
    assert done.stderr.startswith(f"filestore: invalid_request: '{url}' ".encode())


@pytest.mark.parametrize("variable", ["FILESTORE_CA", "FILESTORE_TOKEN_FILE"])
def test_file_that_holds_no_such_thing_is_named(cluster: Cluster, tmp_path: Path, variable: str) -> None:
    path = tmp_path / "given"
    path.write_text("neither one\nnor the other")
    done = run_filestore(["ls"], cluster.command_environment(**{variable: str(path)}))
    assert done.returncode == 2
    assert done.stderr.startswith(f"filestore: invalid_request: {variable}: {path}: ".encode())
    assert b"nor the other" not in done.stderr


def test_directory_that_cannot_be_read_is_told_and_fails_the_command(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Root reads every directory; what is too deep for a path is read by nobody."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "lab.cfg").write_bytes(b"x")
    here = os.open(tree, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 120, dir_fd=here)
        below = os.open("d" * 120, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    done = cluster.filestore("put", "-r", str(tree))
    assert done.returncode == 1
    assert b": left out: File name too long\n" in done.stderr
    assert cluster.get(f"/files/{done.stdout.decode().split()[0]}").body == b"x"
    shutil.rmtree(tree)


def test_sparse_file_comes_back_sparse(cluster: Cluster, tmp_path: Path) -> None:
    size_bytes, content = 40 << 20, b"not empty"
    with (tmp_path / "sparse").open("wb") as file:
        for at in (0, 100_001, 20 << 20, size_bytes - len(content)):
            file.seek(at)
            file.write(content)
    if (tmp_path / "sparse").stat().st_blocks * 512 > 4 << 20:
        pytest.skip("this file system has no holes")
    stored = cluster.filestore("put", str(tmp_path / "sparse")).stdout.decode().strip()
    done = cluster.filestore("get", stored, "-o", str(tmp_path / "back"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back").read_bytes() == (tmp_path / "sparse").read_bytes()
    assert (tmp_path / "back").stat().st_blocks * 512 < 4 << 20
