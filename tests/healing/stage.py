"""The cluster that operations act upon: who is away, whose disk is small, and what the log says.

One thread acts on nodes; clients in other threads only ask who runs.
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.storage.config import CoordinatorFiles
from deploy.dev_cluster import Member
from tests.cluster.disk_shim import DiskRules
from tests.cluster.harness import Cluster
from tests.file_ledger import Ledger

NODES = 5
NODES_MAX = 7  # that are there at once
AWAY_MAX = 2  # dead, hung, draining or without room at once: three are left to write to
REPLICAS = 3
DOWN_AFTER_S = 3
SMALL_DISK_BYTES = 512 << 20
FILLER = "filler"
QUOTA_BYTES = 24 << 20


@dataclass
class Stage:
    """Made by `opened`. `small`: the node with a disk of its own, if this machine allows one."""

    cluster: Cluster
    ledger: Ledger
    dice: random.Random
    small: Member | None
    dead: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    is_full: bool = False
    rules: DiskRules | None = None  # where disks can be made to fail
    sick: dict[str, str] = field(default_factory=dict)  # by node whose disk goes wrong, the rule
    poisoned: list[Path] = field(default_factory=list)  # what nodes cannot use
    unlisted: list[str] = field(default_factory=list)  # rules about directories
    bucket_id: str = ""  # with a quota
    damaged: int = 0  # replicas that went to quarantine, at most
    history: list[str] = field(default_factory=list)
    began_at_s: float = field(default_factory=time.monotonic)

    @property
    def nodes(self) -> list[Member]:
        """Those that were not removed."""
        return [node for node in self.cluster.nodes if node.id not in self.removed]

    @property
    def running(self) -> list[Member]:
        """Those whose process is there and does something, ready or not."""
        return [node for node in self.nodes if node.id not in self.dead | self.hung]

    @property
    def away(self) -> set[str]:
        """Nodes that take nothing new."""
        full = {self.small.id} if self.is_full and self.small else set()
        return self.dead | self.hung | self.draining | full | self.sick.keys()

    @property
    def present(self) -> list[Member]:
        """Nodes that may be taken away."""
        return [node for node in self.nodes if node.id not in self.away]

    def hang(self, node: Member) -> None:
        """Its process stands still, and its connections stand."""
        os.kill(self.cluster.pid(node), signal.SIGSTOP)
        self.hung.add(node.id)

    def wake(self, node: Member) -> None:
        """It goes on."""
        os.kill(self.cluster.pid(node), signal.SIGCONT)
        self.hung.discard(node.id)

    def note(self, text: str) -> None:
        """Into the history of the run."""
        self.history.append(f"{time.monotonic() - self.began_at_s:8.2f} {text}")

    def logged(self, sql: str, *values: object) -> list[Any]:
        """What the state of the coordinator that has applied most says."""
        paths = [CoordinatorFiles(self.cluster.data(member)).state for member in self.cluster.coordinators]
        newest = max(paths, key=lambda path: read(path, "SELECT log_index FROM applied"))
        return read(newest, sql, *values)

    def blob(self, node: Member, sha256: str) -> Path:
        """Where a replica lies."""
        return self.cluster.replica(node, sha256)

    def watch(self) -> None:
        """A process that ended without our doing is a fault; it is started again."""
        for member in self.cluster.members:
            if member.id in self.dead or member.id in self.removed or self.cluster.runs(member):
                continue
            self.ledger.fault(f"{member.id} ended by itself: {self.cluster.last_words(member)}")
            self.cluster.restart(member)

    def fill(self) -> None:
        """Take all room that the small disk has left."""
        assert self.small is not None
        with (self.cluster.data(self.small) / FILLER).open("ab", buffering=0) as filler:
            size_bytes = 1 << 20
            while size_bytes >= 1:
                try:
                    filler.write(bytes(size_bytes))
                except OSError:
                    size_bytes //= 2
        self.is_full = True

    def free(self) -> None:
        """Give the room back."""
        if self.small is not None:
            (self.cluster.data(self.small) / FILLER).unlink(missing_ok=True)
        self.is_full = False


def read(state: Path, sql: str, *values: object) -> list[Any]:
    """Rows of a coordinator's state, while it runs or after."""
    with closing(sqlite3.connect(f"file:{state}?mode=ro", uri=True, timeout=10)) as db:
        return db.execute(sql, values).fetchall()


@contextmanager
def opened(directory: Path, seed: int, *, small_disk: bool) -> Iterator[Stage]:
    """A cluster that runs; with `small_disk` its last node has a file system of its own."""
    cluster = Cluster(
        directory / "cluster",
        node_count=NODES,
        replicas=REPLICAS,
        coordinator_options=("--down-after", str(DOWN_AFTER_S)),
    )
    small = cluster.nodes[-1] if small_disk else None
    rules = DiskRules(directory) if shutil.which("cc") else None
    os.environ.update(rules.environment if rules else {})  # of every process that is started from now on
    with mounted(cluster.data(small) if small else None), cluster:
        made = cluster.post("/buckets", {"name": "narrow", "quota_bytes": QUOTA_BYTES})
        bucket_id = str(made.json["bucket_id"])
        yield Stage(cluster, Ledger(seed), random.Random(seed), small, rules=rules, bucket_id=bucket_id)


@contextmanager
def mounted(directory: Path | None) -> Iterator[None]:
    """A small file system there, until the end."""
    if directory is None:
        yield
        return
    directory.mkdir(mode=0o700)
    options = f"size={SMALL_DISK_BYTES},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)
