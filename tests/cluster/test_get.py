"""`filestore get` over several connections: sizes, nodes that are slow or die, and interruptions."""

import fcntl
import hashlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from deploy.processes import wait_until
from filestore_client.transfer.partial_file import PartialState
from filestore_client.transfer.ranges import CONNECTIONS, RANGE_BYTES_MIN
from tests.cluster.harness import FILESTORE, Cluster, run_filestore
from tests.cluster.throttle import ThrottlingProxy

SIZES = (0, 1, RANGE_BYTES_MIN, 3 * RANGE_BYTES_MIN - 1, 3 * RANGE_BYTES_MIN, 3 * RANGE_BYTES_MIN + 1)
CONTENT = os.urandom(3 * RANGE_BYTES_MIN)
FAST_BYTES_PER_S = 1 << 30


@pytest.fixture(scope="module")
def file_uuid(cluster: Cluster) -> str:
    """CONTENT, which every node holds."""
    return cluster.store(CONTENT, "three-ranges.bin")


@contextmanager
def proxies(cluster: Cluster, *, bytes_per_s: int) -> Iterator[list[ThrottlingProxy]]:
    """One before each node."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(ThrottlingProxy(node.api_port, bytes_per_s=bytes_per_s, is_down=True))
            for node in cluster.nodes
        ]


def through(cluster: Cluster, *ways: ThrottlingProxy) -> dict[str, str]:
    return cluster.command_environment(FILESTORE_URL=" ".join(way.url for way in ways))


@contextmanager
def started(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [FILESTORE, *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        # A shell makes what it starts in the background ignore SIGINT, and tests may run there.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def durable_bytes(target: Path) -> int:
    """What the state beside a partial file says is there."""
    try:
        raw = target.with_name(f"{target.name}.part.state").read_bytes()
    except FileNotFoundError:
        return 0
    return sum(stop - start for start, stop in msgspec.json.decode(raw, type=PartialState).spans)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_every_size_comes_whole_and_leaves_nothing_beside_it(
    cluster: Cluster, tmp_path: Path, size_bytes: int
) -> None:
    content = os.urandom(size_bytes)
    target = tmp_path / "copy"
    done = cluster.filestore("get", cluster.store(content), "-o", str(target))
    assert (done.returncode, done.stderr) == (0, b"")
    assert target.read_bytes() == content
    assert list(tmp_path.iterdir()) == [target]


def test_every_node_brings_a_part_and_connections_are_bounded(
    cluster: Cluster, tmp_path: Path, file_uuid: str
) -> None:
    with proxies(cluster, bytes_per_s=64 << 20) as ways:
        done = run_filestore(["get", file_uuid, "-o", str(tmp_path / "x")], through(cluster, *ways))
        assert done.returncode == 0, done.stderr
        assert all(way.passed_bytes > RANGE_BYTES_MIN // 2 for way in ways)
        assert sum(way.connections_most for way in ways) <= CONNECTIONS + 1  # HEAD has one before
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_small_file_takes_one_connection(cluster: Cluster, tmp_path: Path) -> None:
    file_uuid = cluster.store(os.urandom(RANGE_BYTES_MIN // 2))
    with proxies(cluster, bytes_per_s=FAST_BYTES_PER_S) as ways:
        done = run_filestore(["get", file_uuid, "-o", str(tmp_path / "x")], through(cluster, *ways))
        assert done.returncode == 0, done.stderr
        assert [way.connections_most for way in ways] == [1, 0, 0]


def test_slow_node_does_not_hold_the_end_up(cluster: Cluster, tmp_path: Path, file_uuid: str) -> None:
    with proxies(cluster, bytes_per_s=64 << 20) as ways:
        ways[1].bytes_per_s = 64 << 10  # its range alone would take more than the deadline of a test
        done = run_filestore(["get", file_uuid, "-o", str(tmp_path / "x")], through(cluster, *ways))
        assert done.returncode == 0, done.stderr
        assert ways[1].passed_bytes < RANGE_BYTES_MIN // 2
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.long
def test_node_that_is_killed_meanwhile_is_not_missed(own_cluster: Cluster, tmp_path: Path) -> None:
    cluster = own_cluster
    content = CONTENT * 3  # more ranges than socket buffers hold
    file_uuid = cluster.store(content)
    with proxies(cluster, bytes_per_s=2 << 20) as ways:
        arguments = ("get", file_uuid, "-o", str(tmp_path / "x"))
        with started(through(cluster, *ways), *arguments) as process:
            wait_until(lambda: ways[0].passed_bytes > 1 << 20, what="a part from node 1", timeout_s=60)
            cluster.kill(cluster.nodes[0])
            for way in ways:
                way.bytes_per_s = FAST_BYTES_PER_S
            _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"")
        assert ways[0].passed_bytes < len(content) // 3
    assert (tmp_path / "x").read_bytes() == content


def test_cut_connections_are_made_again(cluster: Cluster, tmp_path: Path, file_uuid: str) -> None:
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=8 << 20, is_down=True) as way:
        way.cut_marks = [len(CONTENT) // share for share in (4, 3, 2)]
        arguments = ("get", file_uuid, "-o", str(tmp_path / "x"))
        with started(through(cluster, way), *arguments) as process:
            _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, b"")
        assert not way.cut_marks
        assert way.passed_bytes < len(CONTENT) * 1.25  # what was under way when it was cut is sent again
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_interrupted_get_asks_only_for_what_is_missing(
    cluster: Cluster, tmp_path: Path, file_uuid: str, how: signal.Signals
) -> None:
    target = tmp_path / "x"
    arguments = ["get", file_uuid, "-o", str(target)]
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=1 << 20, is_down=True) as way:
        with started(through(cluster, way), *arguments) as process:
            wait_until(lambda: durable_bytes(target) > 2 << 20, what="a state on disk", timeout_s=60)
            process.send_signal(how)
            process.communicate(timeout=60)
        assert process.returncode == (-how if how is signal.SIGKILL else 130)
        assert not target.exists()
        kept_bytes = durable_bytes(target)
        way.bytes_per_s = FAST_BYTES_PER_S
        before_bytes = way.passed_bytes
        # One connection: of several, one takes over what another is slow with, and bytes come twice.
        done = run_filestore([*arguments, "--connections", "1"], through(cluster, way))
        sent_bytes = way.passed_bytes - before_bytes
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == CONTENT
    assert 0 < kept_bytes < len(CONTENT)
    assert sent_bytes < (len(CONTENT) - kept_bytes) * 1.02 + (64 << 10)
    assert list(tmp_path.iterdir()) == [target]


def test_file_deleted_meanwhile_ends_the_get_without_a_file(cluster: Cluster, tmp_path: Path) -> None:
    file_uuid = cluster.store(CONTENT)
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=4 << 20, is_down=True) as way:
        arguments = ("get", file_uuid, "-o", str(tmp_path / "x"), "--connections", "1")
        with started(through(cluster, way), *arguments) as process:
            wait_until(lambda: way.passed_bytes > RANGE_BYTES_MIN // 4, what="a part", timeout_s=60)
            assert cluster.request("DELETE", f"/files/{file_uuid}").status == 200
            way.bytes_per_s = FAST_BYTES_PER_S
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 4
    assert errors.startswith(b"filestore: not_found: ")
    assert not (tmp_path / "x").exists()


def test_refusal_tells_what_the_server_says(cluster: Cluster, tmp_path: Path) -> None:
    file_uuid = str(cluster.create("later.bin")["file_uuid"])
    done = cluster.filestore("get", file_uuid, "-o", str(tmp_path / "x"))
    assert done.returncode == 5
    assert done.stderr == b"filestore: not_available: This file is pending: its content is not complete.\n"


def leave_partial(target: Path, content: bytes, state: bytes) -> None:
    """What an interrupted get of other content would have left."""
    target.with_name(f"{target.name}.part").write_bytes(content)
    target.with_name(f"{target.name}.part.state").write_bytes(state)


@pytest.mark.parametrize(
    "state",
    [
        msgspec.json.encode(PartialState("0" * 64, len(CONTENT), [(0, len(CONTENT))])),
        b"",
        b'{"sha256": 5}',
        msgspec.json.encode(PartialState("0" * 64, 10, [(5, 100)])),
    ],
    ids=["of another file", "empty", "not a state", "beyond the end"],
)
def test_state_that_is_not_of_this_content_counts_for_nothing(
    cluster: Cluster, tmp_path: Path, file_uuid: str, state: bytes
) -> None:
    target = tmp_path / "x"
    leave_partial(target, os.urandom(len(CONTENT) + 1000), state)
    done = cluster.filestore("get", file_uuid, "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [target]


def test_state_that_lies_is_found_out_by_the_checksum(
    cluster: Cluster, tmp_path: Path, file_uuid: str
) -> None:
    sha256 = cluster.get(f"/project-files/{file_uuid}").json["blob_sha256"]
    target = tmp_path / "x"
    state = PartialState(sha256, len(CONTENT), [(1 << 20, 2 << 20)])
    leave_partial(target, bytes(len(CONTENT)), msgspec.json.encode(state))
    done = cluster.filestore("get", file_uuid, "-o", str(target))
    assert done.returncode == 1
    assert done.stderr.startswith(b"filestore: checksum_mismatch: ")
    assert list(tmp_path.iterdir()) == []


def test_partial_file_that_is_shorter_than_its_state_is_filled(
    cluster: Cluster, tmp_path: Path, file_uuid: str
) -> None:
    sha256 = cluster.get(f"/project-files/{file_uuid}").json["blob_sha256"]
    target = tmp_path / "x"
    state = PartialState(sha256, len(CONTENT), [(0, 100), (200, len(CONTENT))])
    leave_partial(target, CONTENT[:1000], msgspec.json.encode(state))
    done = cluster.filestore("get", file_uuid, "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == CONTENT


def test_partial_file_that_nobody_can_explain_is_left_alone(
    cluster: Cluster, tmp_path: Path, file_uuid: str
) -> None:
    partial = tmp_path / "x.part"
    partial.write_bytes(b"notes")
    done = cluster.filestore("get", file_uuid, "-o", str(tmp_path / "x"))
    assert done.returncode == 5
    assert done.stderr.startswith(b"filestore: conflict: ")
    assert str(partial).encode() in done.stderr
    assert partial.read_bytes() == b"notes"
    assert list(tmp_path.iterdir()) == [partial]


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_partial_file_that_is_a_link_leads_nowhere(
    cluster: Cluster, tmp_path: Path, file_uuid: str, link: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    link(tmp_path / "x.part", victim)
    done = cluster.filestore("get", file_uuid, "-o", str(tmp_path / "x"))
    assert done.returncode == 5
    assert done.stderr.startswith(b"filestore: conflict: ")
    assert victim.read_bytes() == b""
    assert not (tmp_path / "x").exists()


def test_file_that_is_replaced_keeps_its_permissions(
    cluster: Cluster, tmp_path: Path, file_uuid: str
) -> None:
    target = tmp_path / "x"
    target.touch(mode=0o640)
    target.chmod(0o640)
    refused = cluster.filestore("get", file_uuid, "-o", str(target))
    assert refused.returncode == 5
    assert b"--force" in refused.stderr
    assert target.read_bytes() == b""
    assert cluster.filestore("get", file_uuid, "-o", str(target), "--force").returncode == 0
    assert target.stat().st_mode & 0o777 == 0o640
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("arguments", [(), ("-o", ".")])
def test_file_of_that_name_is_not_replaced_unless_it_is_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    name = "Übung ❤ 100%.gns3p"
    stored = cluster.store(b"content", name)
    monkeypatch.chdir(tmp_path)
    assert cluster.filestore("get", stored, *arguments).returncode == 0
    assert Path(name).read_bytes() == b"content"
    Path(name).write_bytes(b"mine")
    done = cluster.filestore("get", stored, *arguments)
    assert done.returncode == 5
    assert done.stderr.startswith(b"filestore: conflict: ")
    assert Path(name).read_bytes() == b"mine"


def test_file_that_gets_the_name_meanwhile_is_not_replaced(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_uuid: str
) -> None:
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "three-ranges.bin"
    with (
        proxies(cluster, bytes_per_s=len(CONTENT) // 8) as ways,
        started(through(cluster, *ways), "get", file_uuid) as process,
    ):
        wait_until(lambda: durable_bytes(target) > 0, what="something durable", timeout_s=30)
        target.write_bytes(b"mine")
        for way in ways:
            way.bytes_per_s = FAST_BYTES_PER_S
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told.splitlines()[-1][:20]) == (5, b"filestore: conflict:")
    assert target.read_bytes() == b"mine"
    target.unlink()
    assert cluster.filestore("get", file_uuid).returncode == 0  # all of it had come
    assert target.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_partial_file_that_another_takes_the_place_of_is_not_taken_for_the_content(
    cluster: Cluster, tmp_path: Path, file_uuid: str
) -> None:
    target, other = tmp_path / "x", cluster.store(b"other")
    with (
        proxies(cluster, bytes_per_s=len(CONTENT) // 8) as ways,
        started(through(cluster, *ways), "get", file_uuid, "-o", str(target)) as process,
    ):
        wait_until(lambda: durable_bytes(target) > 0, what="something durable", timeout_s=30)
        for way in ways:
            way.bytes_per_s = 8 << 10  # until the other one is there
        assert cluster.filestore("get", other, "--force", "-o", str(tmp_path / "x.part")).returncode == 0
        for way in ways:
            way.bytes_per_s = FAST_BYTES_PER_S
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told.splitlines()[-1][:20]) == (5, b"filestore: conflict:")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x.part": b"other"}


def test_output_that_is_no_file_is_not_replaced(cluster: Cluster, tmp_path: Path, file_uuid: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = cluster.filestore("get", file_uuid, "-o", str(tmp_path / "pipe"))
    assert done.returncode == 2
    assert done.stderr.startswith(b"filestore: invalid_request: ")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_second_get_to_the_same_name_is_refused(cluster: Cluster, tmp_path: Path, file_uuid: str) -> None:
    with (tmp_path / "x.part").open("wb") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        done = cluster.filestore("get", file_uuid, "-o", str(tmp_path / "x"))
    assert done.returncode == 5
    assert done.stderr.startswith(b"filestore: conflict: ")


def test_name_as_long_as_a_file_system_takes_is_possible(cluster: Cluster, tmp_path: Path) -> None:
    target = tmp_path / ("x" * 255)
    done = cluster.filestore("get", cluster.store(b"long"), "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert target.read_bytes() == b"long"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no mount here: {mounted.stderr.decode().strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_full_disk_is_known_before_the_first_byte_and_nothing_is_left(
    cluster: Cluster, small_disk: Path, file_uuid: str
) -> None:
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=FAST_BYTES_PER_S, is_down=True) as way:
        done = run_filestore(["get", file_uuid, "-o", str(small_disk / "x")], through(cluster, way))
        assert way.passed_bytes < 64 << 10
    assert done.returncode == 1
    assert done.stderr == f"filestore: {small_disk / 'x.part'}: No space left on device\n".encode()
    assert list(small_disk.iterdir()) == []


def test_full_disk_keeps_what_an_earlier_run_brought(
    cluster: Cluster, small_disk: Path, file_uuid: str
) -> None:
    state = PartialState(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), [(0, 1 << 20)])
    (small_disk / "x.part.state").write_bytes(msgspec.json.encode(state))
    (small_disk / "x.part").write_bytes(CONTENT[: 1 << 20])
    done = cluster.filestore("get", file_uuid, "-o", str(small_disk / "x"))
    assert done.returncode == 1
    assert done.stderr.endswith(b": No space left on device\n")
    assert (small_disk / "x.part").read_bytes() == CONTENT[: 1 << 20]


def test_memory_is_bounded(cluster: Cluster, tmp_path: Path, file_uuid: str) -> None:
    """A file four times as large takes no more."""
    peaks = []
    for content in (CONTENT[: 1 << 20], CONTENT * 4):
        uuid = cluster.store(content)
        arguments = [FILESTORE, "get", uuid, "--force", "-o", str(tmp_path / "x")]
        process = subprocess.Popen(arguments, env=cluster.command_environment())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks.append(usage.ru_maxrss * 1024)
    assert peaks[1] - peaks[0] < 48 << 20


def test_waiting_for_progress_is_bounded(cluster: Cluster, tmp_path: Path, file_uuid: str) -> None:
    """The only node goes away: the command ends at its deadline, and what has come stays."""
    arguments = ("get", file_uuid, "-o", str(tmp_path / "x"), "--deadline", "1")
    with ExitStack() as ways:
        way = ways.enter_context(
            ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=1 << 20, is_down=True)
        )
        with started(through(cluster, way), *arguments) as process:
            wait_until(lambda: durable_bytes(tmp_path / "x") > 0, what="a state on disk", timeout_s=60)
            ways.close()
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 6
    assert errors.startswith(b"filestore: unavailable: ")
    assert durable_bytes(tmp_path / "x") > 0
