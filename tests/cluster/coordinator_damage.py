"""Every kind of file that a coordinator keeps, what may be done to one, and what must not come of it."""

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from coordinator.admin.restore import write_snapshot
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.snapshot_store import SnapshotStore
from tests.cluster.file_damage import DAMAGES as NODE_DAMAGES
from tests.cluster.file_damage import Damage, named

Find = Callable[[Path], list[Path]]


def duplicate(_dice: random.Random, path: Path, _other: Path | None) -> None:
    """The content is there twice, one behind the other."""
    content = path.read_bytes()
    path.chmod(path.stat().st_mode & 0o777 | 0o200)
    path.write_bytes(content + content)


DAMAGES: Mapping[str, Damage] = {**NODE_DAMAGES, "duplicate": duplicate}


def matching(*patterns: str) -> Find:
    """Files of these patterns below the data directory, those that hold something."""
    return lambda data: sorted(path for pattern in patterns for path in data.glob(pattern) if path.is_file())


def install(data: Path) -> list[Path]:
    """What a crash in an installation leaves, made of the database as it is."""
    path = data / "state.sqlite.install"
    shutil.copyfile(data / "state.sqlite", path)
    return [path]


def snapshot(pattern: str) -> Find:
    """A file of what is handed out to a coordinator that lags, which is made if there is none."""

    def find(data: Path) -> list[Path]:
        files = CoordinatorFiles(data)
        if not list(files.snapshots.glob("*.snapshot")):
            snapshots = SnapshotStore(files.snapshots, files.state)
            snapshots.publish(snapshots.make(snapshots.pin()), origin="")
        return matching(f"snapshots/{pattern}")(data)

    return find


def backup(data: Path) -> list[Path]:
    """As the job makes it, with its checksum."""
    files = CoordinatorFiles(data)
    files.backups.mkdir(mode=0o700, exist_ok=True)
    if not list(files.backups.iterdir()):
        write_snapshot(data, files.backups / "20260101T000000-1.sqlite")
    return matching("backups/*")(data)


# What is made of the database of a coordinator that is down; that of one that runs is left alone.
MADE = ("snapshot", "snapshot note", "backup", "installation")
# What a coordinator does without: it starts on any damage of it, right at once.
SPARE: Mapping[str, Find] = {
    "promises": matching("log/promises"),
    "instance.json": named("instance.json"),
    "instance.json.copy": named("instance.json.copy"),
    "instances.json": named("instances.json"),
    "coordinators.json": named("coordinators.json"),
    "genesis.bin": named("genesis.bin"),
    "genesis.bin.sha256": named("genesis.bin.sha256"),
    "state.sqlite.sums": named("state.sqlite.sums"),
    "snapshot": snapshot("*.snapshot"),
    "snapshot note": snapshot("*.json"),
    "backup": backup,
    "audit.log": named("audit.log"),
    "admin.token": named("admin.token"),
    "root.key": named("root.key"),
    "cluster.bundle": named("cluster.bundle"),
}
# Without them a coordinator does not know who it is: it says so, and somebody has to bring them back.
IDENTITY: Mapping[str, Find] = {
    "coordinator.json": named("coordinator.json"),
    "cluster.key": named("cluster.key"),
    "ca.pem": named("ca.pem"),
    "credential.pem": named("credential.pem"),
}
# What it knows: it goes on, recovers, or says that it must be rebuilt.
LEDGER: Mapping[str, Find] = {
    "log segment": matching("log/*.log"),
    "last log segment": lambda data: sorted(data.glob("log/*.log"))[-1:],
    "installation": install,
}
# What it builds again, by itself: from its log, or by a snapshot of another one.
STATE: Mapping[str, Find] = {
    "state.sqlite": named("state.sqlite"),
    "state.sqlite-wal": named("state.sqlite-wal"),
}

# A disk that does these leaves the time of the file as it was.
IN_PLACE = ("flip", "cut", "zero")

KINDS: Mapping[str, Find] = {**SPARE, **IDENTITY, **LEDGER, **STATE}
