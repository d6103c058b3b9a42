"""Members whose disk is small: a file system of its own, in memory."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from tests.cluster.harness import Cluster

FILES_MAX = 100_000
FILL_TRIES_MAX = 100


@contextmanager
def small_disk(path: Path, size_bytes: int, files_max: int) -> Iterator[None]:
    """A file system of its own at a directory; skips the test where none can be mounted."""
    options = f"size={size_bytes},nr_inodes={files_max},mode=700"
    made = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(made, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def move_to_small_disks(
    cluster: Cluster,
    members: Sequence[Member],
    disks: ExitStack,
    *,
    aside: Path,
    size_bytes: int,
    files_max: int = FILES_MAX,
) -> None:
    """Their data move there until `disks` ends, after the cluster. What they had lies below `aside`."""
    for member in members:
        cluster.terminate(member)
        kept = cluster.data(member).rename(aside / member.id)
        cluster.data(member).mkdir(mode=0o700)
        disks.enter_context(small_disk(cluster.data(member), size_bytes, files_max))
        sockets = shutil.ignore_patterns("*.sock")
        shutil.copytree(kept, cluster.data(member), ignore=sockets, dirs_exist_ok=True)
        cluster.restart(member)
    cluster.wait_healthy()


def fill(cluster: Cluster, node: Member, left_bytes: int) -> Path:
    """Until so many bytes are free, or fewer if the node writes meanwhile; the file that does."""
    ballast = cluster.data(node) / "ballast"
    with ballast.open("wb") as file:
        for _ in range(FILL_TRIES_MAX):
            taken_bytes = shutil.disk_usage(cluster.data(node)).free - left_bytes
            try:
                if taken_bytes > 0:
                    os.posix_fallocate(file.fileno(), 0, taken_bytes)
            except OSError as error:
                if error.errno != errno.ENOSPC:  # the node took some of the room since
                    raise
            else:
                return ballast
    raise AssertionError(f"{node.id} writes faster than its disk is filled")


def fill_files(cluster: Cluster, member: Member) -> Path:
    """Until no file can be made; the directory of those that were."""
    ballast = cluster.data(member) / "ballast"
    ballast.mkdir()
    for number in range(os.statvfs(ballast).f_favail):
        (ballast / str(number)).touch()
    return ballast
