"""The data directory of a node: its files, and the content of node.json.

Tested by tests/unit/node/membership/test_move.py.
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from ca.errors import Conflict
from ca.identity import Identity, Role
from ca.secretfiles import write_durable
from ca.tls import Credential, read_roots
from metadata.model.records import CoordinatorRecord
from node.diskio.fs import FAILURES
from runtime.json_files import decode_foreign

LOCK_PAUSE_S = 0.05  # between two looks at a lock that is about to be free
PROBE = "probe"  # written and removed at start
OTHERS_WRITE = 0o022  # in the directory of a node: other users could replace its credential
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


_log = logging.getLogger(__name__)


class NotJoined(Conflict):
    """The directory contains no node; `filestore node join` creates one."""


class DataInUse(Conflict):
    """Another process works in this directory; two would remove each other's files."""


class NodeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """node.json: the identity of this node, its addresses, and the coordinators at the time of joining."""

    id: str
    cluster: str
    address: str
    api_port: int
    peer_port: int
    coordinators: list[CoordinatorRecord]
    zone: str = ""
    weight: int = 100

    @property
    def identity(self) -> Identity:
        """Return the identity in this node's certificate."""
        return Identity(self.cluster, Role.NODE, self.id)


class NodeFiles:
    """Paths inside a node's data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.config = data / "node.json"
        self.root = data / "ca.pem"
        self.credential_path = data / "credential.pem"
        self.audit = data / "audit.log"
        self.housekeeping = data / "housekeeping.log"
        self.known = data / "coordinators.json"
        self.lock = data / "node.lock"
        self.workers_lock = data / "workers.lock"
        self.run = data / "run"
        self.scrub = data / "scrub.json"
        self.instance = data / "instance.json"

    def trouble(self) -> str:
        """Return why the disk cannot be written now; "" if it can.

        The reason is that it fails, or is read-only. A full disk has no trouble here.
        """
        probe = self.data / PROBE
        try:
            descriptor = os.open(probe, _LOCK_FLAGS | os.O_TRUNC, 0o600)
            try:
                os.write(descriptor, b"probe")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            probe.unlink()
        except OSError as error:
            return os.strerror(error.errno or errno.EIO) if error.errno in FAILURES else ""
        return ""

    @contextmanager
    def lock_directory(self) -> Iterator[int]:
        """Keep the directory for this process alone; the kernel ends that with the process.

        Yields the descriptor of the locked file. Raises DataInUse.
        """
        descriptor = os.open(self.lock, _LOCK_FLAGS, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield descriptor
        except BlockingIOError:
            raise DataInUse(f"{self.data} is in use by another process.") from None
        finally:
            os.close(descriptor)

    @contextmanager
    def lock_for_workers(self, timeout_s: float) -> Iterator[int]:
        """Yield a descriptor for the workers to inherit, which keeps the directory locked.

        The lock lasts until the last worker has ended. Waits for the workers of a process that was killed.
        Blocks; raises DataInUse after `timeout_s`.
        """
        ends_at_s, is_logged = time.monotonic() + timeout_s, False
        descriptor = os.open(self.workers_lock, _LOCK_FLAGS, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= ends_at_s:
                        raise DataInUse(f"Earlier workers still use {self.data}.") from None
                    if not is_logged:
                        _log.warning(
                            "earlier workers still use this directory: waiting until they have stopped"
                        )
                    is_logged = True
                    time.sleep(LOCK_PAUSE_S)
            yield descriptor
        finally:
            os.close(descriptor)

    def credential(self) -> Credential:
        """Return key, certificate and trusted root of this node."""
        return Credential(self.credential_path, read_roots(self.root))

    def read_config(self) -> NodeConfig:
        """Read node.json. Raises NotJoined."""
        try:
            return decode_foreign(self.config.read_bytes(), NodeConfig)
        except FileNotFoundError:
            raise NotJoined(
                f"{self.data} contains no node. Is its disk mounted? Otherwise run `filestore node join`"
            ) from None
        except OSError as error:
            raise NotJoined(f"{self.config} cannot be read: {error.strerror}. Check the disk.") from error
        except msgspec.MsgspecError as error:
            raise NotJoined(
                f"{self.config} cannot be read: {error}. Restore it from a backup, or write it again, "
                "following the example of another node."
            ) from error

    def write_config(self, config: NodeConfig) -> None:
        """Replace node.json. Joining writes it last: from then on the directory contains a node."""
        write_durable(self.config, msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")
