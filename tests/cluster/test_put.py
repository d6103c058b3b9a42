"""`filestore put` of several files: side by side, each with its own outcome, none twice."""

import os
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, run_filestore
from tests.cluster.throttle import ThrottlingProxy


def files_in(directory: Path, *sizes: int) -> list[str]:
    paths = [directory / f"{directory.name} {number}.bin" for number in range(len(sizes))]
    for path, size_bytes in zip(paths, sizes, strict=True):
        path.write_bytes(os.urandom(size_bytes))
    return [str(path) for path in paths]


def uuids_of(lines: bytes) -> dict[str, str]:
    """By file, in the order of the lines."""
    return {path: uuid for uuid, path in (line.split("  ", 1) for line in lines.decode().splitlines())}


def project(cluster: Cluster, project_id: str) -> list[str]:
    records = cluster.get(f"/project-files?project_id={project_id}").json["project_files"]
    return sorted(record["file_uuid"] for record in records)


def test_several_files_are_stored_and_told_in_order(cluster: Cluster, tmp_path: Path) -> None:
    files = files_in(tmp_path, 0, 1, 3_000_000, 100, 1_000_000, 5)
    done = cluster.filestore("put", *files, "--project-id", "several")
    assert (done.returncode, done.stderr) == (0, b"")
    uuids = uuids_of(done.stdout)
    assert list(uuids) == files
    assert project(cluster, "several") == sorted(uuids.values())
    for path, uuid in uuids.items():
        assert cluster.get(f"/files/{uuid}").body == Path(path).read_bytes()
        assert cluster.get(f"/project-files/{uuid}").json["filename"] == Path(path).name


def test_file_that_fails_stops_no_other_and_nothing_is_stored_twice(cluster: Cluster, tmp_path: Path) -> None:
    files = files_in(tmp_path, 1000, 0, 2_000_000)
    arguments = ("put", files[0], "/nowhere/lab.bin", *files[1:], "--project-id", "one-fails")
    done = cluster.filestore(*arguments)
    assert done.returncode == 1
    assert done.stderr == b"filestore: /nowhere/lab.bin: No such file or directory\n"
    uuids = uuids_of(done.stdout)
    assert list(uuids) == files
    assert uuids_of(cluster.filestore(*arguments).stdout) == uuids
    done = cluster.filestore(
        "put", *files, "--project-id", "one-fails"
    )  # now all are stored: remembered no more
    assert (done.returncode, uuids_of(done.stdout)) == (0, uuids)
    assert project(cluster, "one-fails") == sorted(uuids.values())
    again = uuids_of(cluster.filestore("put", *files, "--project-id", "one-fails").stdout)
    assert set(again.values()).isdisjoint(uuids.values())


def test_file_that_is_given_under_two_names_is_refused_with_both(cluster: Cluster, tmp_path: Path) -> None:
    (file,) = files_in(tmp_path, 10)
    link = tmp_path / "link"
    link.symlink_to(file)
    done = cluster.filestore("put", file, str(link))
    assert done.returncode == 2
    assert f"{file} and {link} are the same FILE." in done.stderr.decode()


@pytest.mark.parametrize("connections", [1, 3])
def test_no_more_files_than_connections_are_sent_at_once(
    cluster: Cluster, tmp_path: Path, connections: int
) -> None:
    files = files_in(tmp_path, *[1 << 20] * 6)
    with ThrottlingProxy(cluster.nodes[0].api_port, bytes_per_s=8 << 20) as way:
        environment = cluster.command_environment(FILESTORE_URL=way.url)
        done = run_filestore(["put", *files, "--only-url", "--connections", str(connections)], environment)
        assert done.returncode == 0, done.stderr
        assert way.connections_most == connections


@pytest.mark.parametrize(
    "arguments",
    [("a", "-"), ("a", "b", "--filename", "c"), ("a", "./a"), ("a", "--connections", "0")],
)
def test_wrong_use_of_several_files_is_2(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    done = cluster.filestore("put", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
