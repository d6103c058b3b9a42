"""Move a stopped node to another directory or disk, or to another address with another name.

The node is stopped: its locks are held. Only one directory ever belongs to a node: the `node.json` of the old
one becomes `node.json.moved`. Each step can be repeated after a crash.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from ca.errors import Conflict, InvalidRequest
from ca.secretfiles import make_directory, sync_directory, sync_file
from metadata.rpc.client import MetadataClient
from metadata.rpc.roster import read_known
from metadata.rpc.tls_contexts import MemberContexts
from node.base.config import NodeConfig, NodeFiles
from node.membership.renewal import renew
from runtime.lifetime import end_tasks

_MARK: Final = "moving"  # in a directory that is being filled: where from
_OLD: Final = "node.json.moved"
_LOST_FOUND: Final = "lost+found"  # of a file system, whose top a directory may be
_LEFT_BEHIND: Final = frozenset({"node.json", _OLD, "node.lock", "workers.lock", "run", _LOST_FOUND})
_WAIT_S: Final = 1.0  # for the workers of a node that has just ended


@contextmanager
def stopped(data: Path) -> Iterator[NodeConfig]:
    """The configuration of a stopped node, whose directory is held; also of one that has just been left.

    Raises DataInUse, NotJoined.
    """
    files = NodeFiles(data)
    with files.lock_directory(), files.lock_for_workers(_WAIT_S):
        if not files.config.exists() and (data / _OLD).exists():
            files.config = data / _OLD
        yield files.read_config()


def move(data: Path, target: Path) -> NodeConfig:
    """Copy the whole directory of a stopped node to `target`, and use that from now on; the old one stays.

    Raises DataInUse, NotJoined, Conflict for a target that is in use, InvalidRequest without room.
    """
    with stopped(data) as config:
        _begin(data, target)
        needed_bytes = sum(path.lstat().st_size for path in data.rglob("*") if path.is_file())
        if shutil.disk_usage(target).free < needed_bytes:
            raise InvalidRequest(f"{target} has no room for {needed_bytes} bytes.")
        for path in sorted(data.iterdir()):
            if path.name not in _LEFT_BEHIND:
                _carry(path, target / path.name)
        _end(data)
        NodeFiles(target).write_config(config)
        _done(target)
    return config


def take_blobs(data: Path, target: Path) -> None:
    """The content of a stopped node is that of the one at `target`, which has joined under another name.

    Renamed where both are on one disk. Raises DataInUse, NotJoined, InvalidRequest.
    """
    with stopped(data):
        blobs = target / "blobs"
        if blobs.exists() and not (target / _MARK).exists():
            raise Conflict(f"{blobs} already exists.")
        _mark(data, target)
        if not blobs.exists() and data.stat().st_dev == target.stat().st_dev:
            (data / "blobs").rename(blobs)
            sync_directory(data)
        elif (data / "blobs").exists():  # or it was renamed before
            _carry(data / "blobs", blobs)
        _end(data)
        _done(target)


def _begin(data: Path, target: Path) -> None:
    if target.resolve().is_relative_to(data.resolve()):
        raise InvalidRequest(f"{target} is within {data}.")
    make_directory(target)
    if (target / "node.json").exists():
        raise Conflict(f"{target} already contains a node.")
    if set(os.listdir(target)) - {_LOST_FOUND} and not (target / _MARK).exists():
        raise Conflict(f"{target} is not empty.")
    _mark(data, target)


def _mark(data: Path, target: Path) -> None:
    if os.geteuid() == 0:  # continue as the user that owns the files
        owner = data.stat()
        os.chown(target, owner.st_uid, owner.st_gid)
    mark, source = target / _MARK, str(data.resolve())
    if mark.exists() and mark.read_text("utf-8") != source:
        raise Conflict(f"{target} contains an unfinished move from {mark.read_text('utf-8')}.")
    mark.write_text(source, "utf-8")
    sync_file(mark)
    sync_directory(target)


def _done(target: Path) -> None:
    (target / _MARK).unlink()
    sync_directory(target)


def _end(data: Path) -> None:
    """Rename the directory's configuration, so that no second node of the same name is started here."""
    if (data / "node.json").exists():
        (data / "node.json").rename(data / _OLD)
        sync_directory(data)


def _carry(source: Path, target: Path) -> None:
    """A durable copy; files that were copied before are left as they are."""
    if not source.is_dir():
        if source.is_file() and not _is_copied(source, target):
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
            sync_file(target)
            shutil.copystat(source, target)
        return
    target.mkdir(mode=0o700, exist_ok=True)
    for path in sorted(source.iterdir()):
        _carry(path, target / path.name)
    shutil.copystat(source, target)
    sync_directory(target)


def _is_copied(source: Path, target: Path) -> bool:
    """The time is copied last, when the content is durable."""
    if not target.exists():
        return False
    ours, theirs = source.stat(), target.stat()
    return (ours.st_size, ours.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


async def take_address(files: NodeFiles, config: NodeConfig, address: str) -> None:
    """Renew the certificate of a stopped node for its new address, which the log knows, then write node.json.

    Until node.json says the new address, a start of the node fails.

    Raises UnusableCredential, and what the coordinators refuse with.
    """
    contexts = MemberContexts(files.credential(), config.identity)
    coordinators = read_known(files.known, config.coordinators)
    metadata = MetadataClient(config.identity, coordinators, contexts.client)
    running = asyncio.create_task(metadata.run(), name="metadata client")
    try:
        await renew(metadata, contexts, config.identity, address)
    finally:
        await end_tasks([running])
    files.write_config(msgspec.structs.replace(config, address=address))
