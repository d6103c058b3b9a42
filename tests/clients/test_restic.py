"""restic keeps its repositories in a bucket, through `filestore serve restic`."""

import filecmp
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.processes import wait_until
from tests.clients.restic_server import BASIC, Restic, ask, gateway, password_file, serving
from tests.cluster.harness import Cluster, peak_memory_bytes

V1: Final = "application/vnd.x.restic.rest.v1"
V2: Final = "application/vnd.x.restic.rest.v2"
MIB: Final = 1 << 20
ABSENT: Final = "0" * 64

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def bucket(four: Cluster) -> str:
    name = f"restic-{secrets.token_hex(3)}"
    assert four.post("/buckets", {"name": name}).status == 201
    return name


@pytest.fixture(scope="module")
def port(four: Cluster, bucket: str) -> Iterator[int]:
    with serving(four, bucket) as found:
        yield found


@pytest.fixture
def mine(restic: str, port: int, tmp_path: Path) -> Restic:
    """A new repository."""
    made = Restic(restic, port, f"r-{secrets.token_hex(4)}", tmp_path)
    assert "created restic repository" in made.do("init")
    return made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What is backed up: large and small files, and one that is empty."""
    root = tmp_path / "tree"
    (root / "deep" / "er").mkdir(parents=True)
    for name, size in (("large.bin", 40 * MIB), ("small", 10), ("empty", 0), ("deep/er/odd ü.bin", 3 * MIB)):
        (root / name).write_bytes(os.urandom(size))
    return root


def check_same(tree: Path, restored: Path) -> None:
    found = filecmp.dircmp(tree, restored)
    names = [str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()]
    same, other, failed = filecmp.cmpfiles(tree, restored, names, shallow=False)
    assert (sorted(same), other, failed) == (sorted(names), [], [])
    assert not found.right_only


def snapshots(mine: Restic) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(mine.do("snapshots", "--json")) or []
    return found


def records(cluster: Cluster, mine: Restic) -> int:
    """How many files of the bucket are of this repository."""
    listed = cluster.get(f"/backups?filename=restic:{mine.repository}:&status=available&limit=1000").json
    return len(listed["backups"])


def test_backup_is_checked_restored_and_pruned(
    four: Cluster, mine: Restic, tree: Path, tmp_path: Path
) -> None:
    mine.do("backup", str(tree))
    mine.do("check", "--read-data")
    mine.do("restore", "latest", "--target", str(tmp_path / "restored"))
    check_same(tree, Path(f"{tmp_path / 'restored'}{tree}"))
    (tree / "large.bin").write_bytes(os.urandom(30 * MIB))
    mine.do("backup", str(tree))
    assert len(snapshots(mine)) == 2
    before = records(four, mine)
    mine.do("forget", "--keep-last", "1", "--prune")
    assert len(snapshots(mine)) == 1
    assert records(four, mine) < before
    mine.do("check", "--read-data")
    mine.do("restore", "latest", "--target", str(tmp_path / "again"))
    check_same(tree, Path(f"{tmp_path / 'again'}{tree}"))


def test_backup_that_was_killed_is_made_again(
    four: Cluster, mine: Restic, tree: Path, tmp_path: Path
) -> None:
    (tree / "huge.bin").write_bytes(os.urandom(120 * MIB))
    empty = records(four, mine)
    running = mine.start("backup", str(tree))
    try:
        wait_until(lambda: records(four, mine) > empty + 1, what="the first packs", timeout_s=60)
        running.kill()
    finally:
        running.communicate()
    assert snapshots(mine) == []
    mine.do("unlock", "--remove-all")
    mine.do("backup", str(tree))
    mine.do("check", "--read-data")
    mine.do("restore", "latest", "--target", str(tmp_path / "restored"))
    check_same(tree, Path(f"{tmp_path / 'restored'}{tree}"))


def test_two_backups_at_once_are_both_whole(mine: Restic, tmp_path: Path) -> None:
    trees = []
    for number in range(2):
        path = tmp_path / f"tree-{number}"
        path.mkdir()
        (path / "file.bin").write_bytes(os.urandom(25 * MIB))
        trees.append(path)
    running = [mine.start("backup", str(path)) for path in trees]
    said = [process.communicate(timeout=100)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    mine.do("check", "--read-data")
    for found in snapshots(mine):
        (path,) = found["paths"]
        mine.do("restore", found["id"], "--target", str(tmp_path / "restored"))
        check_same(Path(path), Path(f"{tmp_path / 'restored'}{path}"))


def test_backups_through_two_servers_are_one_repository(
    four: Cluster, bucket: str, mine: Restic, tree: Path
) -> None:
    with serving(four, bucket) as other_port:
        other = Restic(mine.program, other_port, mine.repository, mine.directory / "other")
        mine.do("backup", str(tree))
        other.do("backup", str(tree / "deep"))
        assert len(snapshots(mine)) == len(snapshots(other)) == 2
        other.do("forget", "--keep-last", "1", "--group-by", "host", "--prune")
        assert len(snapshots(mine)) == 1
        mine.do("check", "--read-data")


def test_wrong_password_and_a_second_repository_of_the_name_are_refused(mine: Restic) -> None:
    stranger = Restic(mine.program, mine.port, mine.repository, mine.directory, password="wrong")
    code, said = stranger.run("snapshots")
    assert code != 0
    assert "wrong password" in said
    code, said = mine.run("init")
    assert code != 0
    assert "already" in said
    other = Restic(mine.program, mine.port, "no-such-one", mine.directory)
    code, said = other.run("snapshots")
    assert code != 0
    assert "Is there a repository" in said


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def bare(port: int) -> str:
    """The path of a new repository without content."""
    path = f"/b-{secrets.token_hex(4)}"
    assert ask(port, "POST", f"{path}/?create=true").status == 200
    return path


def test_lists_are_of_both_versions(port: int, bare: str) -> None:
    assert ask(port, "GET", f"{bare}/data/").json == []
    contents = [secrets.token_bytes(size) for size in (0, 1, 1000)]
    for content in contents:
        assert ask(port, "POST", f"{bare}/data/{sha256(content)}", body=content).status == 200
    first = ask(port, "GET", f"{bare}/data/", headers={"Accept": V1})
    assert first.headers["content-type"] == V1
    assert sorted(first.json) == sorted(map(sha256, contents))
    second = ask(port, "GET", f"{bare}/data/", headers={"Accept": V2})
    assert second.headers["content-type"] == V2  # to the letter, or restic takes it for version 1
    expected = {sha256(content): len(content) for content in contents}
    assert {entry["name"]: entry["size"] for entry in second.json} == expected
    assert ask(port, "GET", f"{bare}/keys/").json == []


def test_ranges_and_heads_are_of_the_content(port: int, bare: str) -> None:
    content = secrets.token_bytes(100_000)
    path = f"{bare}/index/{sha256(content)}"
    assert ask(port, "POST", path, body=content).status == 200
    head = ask(port, "HEAD", path)
    assert (head.status, head.headers["content-length"], head.body) == (200, "100000", b"")
    whole = ask(port, "GET", path)
    assert (whole.status, whole.body) == (200, content)
    for asked, expected in (
        ("bytes=0-9", content[:10]),
        ("bytes=99990-", content[-10:]),
        ("bytes=-5", content[-5:]),
        ("bytes=99990-999999", content[-10:]),
    ):
        answer = ask(port, "GET", path, headers={"Range": asked})
        assert (answer.status, answer.body) == (206, expected)
        start = content.index(expected)
        assert answer.headers["content-range"] == f"bytes {start}-{start + len(expected) - 1}/100000"
    for wrong in ("bytes=100000-", "bytes=x", "bytes=5-1"):
        assert ask(port, "GET", path, headers={"Range": wrong}).status == 416
    empty = f"{bare}/locks/{sha256(b'')}"
    assert ask(port, "POST", empty, body=b"").status == 200
    assert ask(port, "GET", empty).body == b""


def test_configuration_is_written_once(port: int, bare: str) -> None:
    path = f"{bare}/config"
    assert ask(port, "HEAD", path).status == ask(port, "GET", path).status == 404
    assert ask(port, "POST", path, body=b"first").status == 200
    assert ask(port, "POST", path, body=b"first").status == 200  # sent again, as its answer was lost
    assert ask(port, "POST", path, body=b"second").status == 403
    assert ask(port, "GET", path).body == b"first"
    assert ask(port, "HEAD", path).headers["content-length"] == "5"
    assert ask(port, "DELETE", path).status == 200
    assert ask(port, "GET", path).status == 404


def test_of_configurations_at_once_at_most_one_is_taken(port: int) -> None:
    for _ in range(5):
        path = f"/b-{secrets.token_hex(4)}/config"
        contents = [secrets.token_bytes(100) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(ask, port, "POST", path, body=content) for content in contents]
        statuses = [answer.result().status for answer in answers]
        taken = [content for content, status in zip(contents, statuses, strict=True) if status == 200]
        assert set(statuses) <= {200, 403}
        assert len(taken) <= 1
        answer = ask(port, "GET", path)
        assert ([answer.body] if answer.status == 200 else []) == taken


def test_what_is_not_there_is_404_and_what_is_there_is_not_replaced(port: int, bare: str) -> None:
    for method in ("GET", "HEAD", "DELETE"):
        assert ask(port, method, f"{bare}/data/{ABSENT}").status == 404
    content = b"pack"
    path = f"{bare}/data/{sha256(content)}"
    assert ask(port, "POST", path, body=content).status == 200
    assert ask(port, "POST", path, body=content).status == 200  # sent again, as its answer was lost
    assert ask(port, "POST", path, body=b"other").status == 400
    assert ask(port, "GET", path).body == content
    assert ask(port, "DELETE", path).status == 200
    for method in ("GET", "HEAD", "DELETE"):
        assert ask(port, method, path).status == 404
    assert ask(port, "POST", path, body=content).status == 200  # and back again
    assert ask(port, "GET", path).body == content


@pytest.mark.parametrize("size", [10, 33 * MIB], ids=["in memory", "as it comes"])
def test_content_with_another_sum_is_refused_and_not_stored(port: int, bare: str, size: int) -> None:
    content = secrets.token_bytes(size)
    path = f"{bare}/data/{sha256(content)}"
    answer = ask(port, "POST", path, body=content[:-1] + bytes([content[-1] ^ 1]))
    assert answer.status == 400
    assert ask(port, "GET", path).status == 404
    assert ask(port, "GET", f"{bare}/data/").json == []
    assert ask(port, "POST", path, body=content).status == 200
    assert ask(port, "GET", path).body == content


def test_body_that_breaks_off_is_not_stored(four: Cluster, port: int, bare: str) -> None:
    content = secrets.token_bytes(2 * MIB)
    for length in (len(content), 40 * MIB):
        path = f"{bare}/data/{sha256(content)}"
        login = f"Authorization: {BASIC['Authorization']}"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{login}\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(head + content[:MIB])
        assert ask(port, "GET", path).status == 404
    assert ask(port, "GET", f"{bare}/data/").json == []


@pytest.mark.parametrize(
    "path",
    [
        "/..",
        "/../config",
        "/%2e%2e/config",
        "/a%2fb/config",
        "/a/../../config",
        "/.hidden/config",
        f"/{'x' * 65}/config",
        "/a%00b/config",
        "/a:b/config",
        "/r/data/../config",
        "/r/data/..%2f..%2fconfig",
        "/r/data/short",
        f"/r/data/{'A' * 64}",
        f"/r/data/{'0' * 63}",
        f"/r/data/{'0' * 65}",
        f"/r/data/{'0' * 32}/{'0' * 31}",
        "/r//config",
        "/r/../s/config",
        "/r/data/s/config",
        "/locks/r/config",
        f"/{'/'.join(['x' * 43] * 3)}/config",
        f"/r/other/{ABSENT}",
        "/r/other/",
        "/r/config/more",
        "/",
        "/config",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_name_that_can_be_none_is_refused(port: int, path: str, method: str) -> None:
    answer = ask(port, method, path, body=b"x" if method == "POST" else None)
    assert answer.status in (400, 404, 405)


def test_repository_is_only_made_when_it_is_asked_for(port: int) -> None:
    assert ask(port, "POST", "/some/").status == 400
    assert ask(port, "POST", "/some/?create=false").status == 400
    assert ask(port, "POST", "/some/?create=true").status == 200


def test_many_large_bodies_at_once_take_bounded_memory(four: Cluster, bucket: str, tmp_path: Path) -> None:
    options = ("--password-file", str(password_file(tmp_path)))
    contents = [secrets.token_bytes(32 * MIB) for _ in range(20)]
    with gateway(four, bucket, *options) as served:
        before = peak_memory_bytes(served.process.pid)

        def post(content: bytes) -> int:
            return ask(served.port, "POST", f"/many/data/{sha256(content)}", body=content).status

        with ThreadPoolExecutor(len(contents)) as threads:
            assert set(threads.map(post, contents)) == {200}
        assert peak_memory_bytes(served.process.pid) - before < 250 * MIB


def test_repositories_of_users_are_told_apart(restic: str, port: int, tmp_path: Path, tree: Path) -> None:
    made = [Restic(restic, port, f"n-{secrets.token_hex(4)}/{user}/lab", tmp_path) for user in ("ann", "bob")]
    for each in made:
        each.do("init")
    made[0].do("backup", str(tree / "deep"))
    assert [len(snapshots(each)) for each in made] == [1, 0]
    made[0].do("check", "--read-data")


def test_bucket_that_is_not_there_is_told(four: Cluster) -> None:
    options = ("--listen", "127.0.0.1:0", "--no-auth")
    done = four.filestore("serve", "restic", "--bucket", "no-such-bucket", *options)
    assert done.returncode == 4
    assert b"no-such-bucket" in done.stderr
