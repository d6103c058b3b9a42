"""Nodes whose disk is small: a file system of its own, in memory."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deploy.development import Member
from tests.cluster.harness import Cluster


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[None]:
    """A file system of its own at a directory; skips the test where none can be mounted."""
    made = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(made, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def move_to_small_disks(
    cluster: Cluster, nodes: Sequence[Member], disks: ExitStack, *, aside: Path, size_bytes: int
) -> None:
    """Their data move there until `disks` ends, after the cluster. What they had lies below `aside`."""
    for node in nodes:
        cluster.terminate(node)
        kept = cluster.data(node).rename(aside / node.id)
        cluster.data(node).mkdir(mode=0o700)
        disks.enter_context(small_disk(cluster.data(node), size_bytes))
        sockets = shutil.ignore_patterns("*.sock")
        shutil.copytree(kept, cluster.data(node), ignore=sockets, dirs_exist_ok=True)
        cluster.restart(node)
    cluster.wait_healthy()


def fill(cluster: Cluster, node: Member, left_bytes: int) -> Path:
    """Until so many bytes are free; the file that does."""
    ballast = cluster.data(node) / "ballast"
    room_bytes = shutil.disk_usage(cluster.data(node)).free
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, room_bytes - left_bytes)
    return ballast
