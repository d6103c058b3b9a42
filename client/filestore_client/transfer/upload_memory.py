"""The state of unfinished uploads of files, with which they resume after an interruption.

One small file per upload in ${XDG_STATE_HOME:-~/.local/state}/filestore/uploads, named by a digest of the
cluster's root, the file's absolute path, size, inode and times of change, and the requested fields; for a
stream by the given identity of its content. It holds no secret.

Tested by tests/cluster/test_client_identity.py.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from filestore_client.base.contexts import state_directory
from filestore_client.base.durable import SECRET_MODE, write_durable
from filestore_client.base.errors import InvalidRequest

T = TypeVar("T")

_LOOK_EVERY_S = 600.0
_next_look_s: dict[Path, float] = {}  # by directory, on the monotonic clock
FORGET_AFTER_S = 7 * 24 * 3600  # the server forgets an upload 24 hours after its last byte


class UnfinishedUpload(msgspec.Struct, frozen=True):
    """An upload of ours. `upload_url` is where its bytes go."""

    file_uuid: str
    upload_url: str


class UnfinishedCreation(msgspec.Struct, frozen=True):
    """A creation with all of the content, by the key that it is asked for with."""

    key: str


class UnfinishedParts(msgspec.Struct, frozen=True):
    """The parts of one file, each an upload of ours."""

    parts: list[UnfinishedUpload]


@dataclass(frozen=True, slots=True)
class Memory:
    """The place of one upload's record. `path`: None for a user without a home: nothing is remembered."""

    path: Path | None

    @staticmethod
    def of(cluster: str, file: Path, facts: os.stat_result, fields: Mapping[str, object]) -> "Memory":
        """Return the memory for this file as it is now, this cluster, and these fields of the new record.

        It does not depend on the node: the next run may find another one first.
        """
        # The time of the inode's change too: `cp -p` and `touch` set the other one back.
        version = (facts.st_size, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)
        return _of_key((cluster, os.fsencode(file.absolute()), version, sorted(fields.items())))

    @staticmethod
    def of_identity(cluster: str, identity: str, fields: Mapping[str, object]) -> "Memory":
        """For content that is known by a name of its own, wherever it is read from."""
        return _of_key((cluster, identity, sorted(fields.items())))

    def read(self) -> UnfinishedUpload | None:
        """Return what an earlier run left, if anything usable."""
        return self._read(UnfinishedUpload)

    def read_key(self) -> str:
        """The key of a creation that an earlier run has asked for, "" if it left none."""
        found = self._read(UnfinishedCreation)
        return found.key if found is not None else ""

    def read_parts(self) -> UnfinishedParts | None:
        """Return the same of an upload in parts."""
        return self._read(UnfinishedParts)

    def write(self, upload: UnfinishedUpload | UnfinishedParts | UnfinishedCreation) -> None:
        """Remember. A state directory that cannot be written costs only the resumption."""
        if self.path is not None:
            with suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_durable(self.path, msgspec.json.encode(upload), mode=SECRET_MODE)
                _forget_old(self.path.parent)

    def exists(self) -> bool:
        """Return whether an earlier run left anything."""
        return self.path is not None and self.path.exists()

    def forget(self) -> None:
        """The upload has ended; the server says so too of one whose record cannot be removed."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()

    def _read(self, kind: type[T]) -> T | None:
        if self.path is None:
            return None
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None


def _of_key(key: object) -> Memory:
    name = f"{hashlib.sha256(msgspec.json.encode(key)).hexdigest()}.json"
    try:
        return Memory(state_directory() / "uploads" / name)
    except InvalidRequest:
        return Memory(None)


def _forget_old(directory: Path) -> None:
    """Delete what is too old, once in a while: an upload of thousands of files writes as many of these."""
    now_s = time.monotonic()
    if now_s < _next_look_s.get(directory, 0.0):
        return
    _next_look_s[directory] = now_s + _LOOK_EVERY_S
    oldest = time.time() - FORGET_AFTER_S
    for path in directory.glob("*.json"):
        if path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)
