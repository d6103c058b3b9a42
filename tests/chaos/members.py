"""The processes of the cluster: set up, started, killed, paused, with clocks and disks that can be broken."""

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ca.secretfiles import read_secret
from coordinator.admin import setup
from coordinator.admin.authority import SigningAuthority
from coordinator.storage.config import CoordinatorFiles
from coordinator.storage.state_store import Store
from deploy.processes import OURS
from metadata.model.records import CoordinatorRecord
from runtime.clock import now_ms
from tests.cluster.clocks import Clocks

CLUSTER_NAME = "chaos"
REPLICAS, WRITE_QUORUM = 3, 2
DISK_BYTES = 768 << 20  # of the member with a small disk: room for the log, the state and its snapshots
TOKEN_TTL_S = 24 * 3600
PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 25.0
FILLER = "filler"
_FILL_BYTES_MIN = 4096
_LIBC = ctypes.CDLL(None)


def end_with_parent() -> None:
    """In a child before it runs: SIGKILL when this program ends, however it does."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class Member:
    """One coordinator or node. `command` comes before its own, `environment` on top of ours."""

    id: str
    address: str
    peer_port: int
    api_port: int
    data: Path
    log: Path
    role: str = "coordinator"  # the word of its command
    command: Sequence[str] = ()
    environment: dict[str, str] = field(default_factory=dict)
    clocks: Clocks | None = None  # of all members, where one can be set
    has_small_disk: bool = False
    process: "subprocess.Popen[bytes] | None" = None
    is_paused: bool = False
    may_end: bool = True  # its end is our doing, or was noticed already

    @property
    def record(self) -> CoordinatorRecord:
        """What the group knows of a coordinator."""
        assert self.role == "coordinator"
        return CoordinatorRecord(
            coordinator_id=self.id,
            address=self.address,
            peer_port=self.peer_port,
            api_port=self.api_port,
        )

    @property
    def url(self) -> str:
        """Where its API is."""
        return f"https://{self.address}:{self.api_port}"

    @property
    def runs(self) -> bool:
        """Whether there is a process, paused or not."""
        return self.process is not None and self.process.poll() is None

    def prepare(self) -> None:
        """Make its directory, and that of its log."""
        self.data.mkdir(mode=0o700, parents=True)
        self.log.parent.mkdir(exist_ok=True)

    def filestore(self, verb: str, *options: str) -> list[str]:
        """The command of this version for its role and directory, to be run with its environment."""
        return [*self.command, *OURS, self.role, verb, "--data", str(self.data), *options]

    def start(self) -> None:
        """Start the process; it is not ready yet."""
        assert not self.runs
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.filestore("run"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | self.environment,
                process_group=0,
                preexec_fn=end_with_parent,
            )
        self.is_paused, self.may_end = False, False

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.may_end = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """SIGTERM and the time to end in order. Raises subprocess.TimeoutExpired."""
        self.may_end = True
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and hears nothing."""
        assert self.process is not None
        self.is_paused = True
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self.is_paused and self.process is not None:
            self.is_paused = False
            self.process.send_signal(signal.SIGCONT)

    def ended_by_itself(self) -> str:
        """How it ended without our doing, told once; "" otherwise."""
        if self.may_end or self.process is None or self.process.poll() is None:
            return ""
        self.may_end = True
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"{self.id} ended by itself with {self.process.returncode}: {''.join(lines[-1:])[:400]}"

    def set_clock(self, offset_s: int) -> None:
        """Its wall clock jumps to this far from the real one, and is there when it starts again."""
        assert self.clocks is not None
        self.environment["CLOCK_SHIFT"] = str(offset_s)
        if self.process is not None and self.runs:
            self.clocks.move(self.process.pid, offset_s)

    def fill_disk(self) -> None:
        """Take all room that its disk has left."""
        with (self.data / FILLER).open("ab") as filler:
            size_bytes = DISK_BYTES
            while size_bytes >= _FILL_BYTES_MIN:
                try:
                    os.posix_fallocate(filler.fileno(), os.fstat(filler.fileno()).st_size, size_bytes)
                except OSError:
                    size_bytes //= 2

    def free_disk(self) -> None:
        """Give the room back."""
        (self.data / FILLER).unlink(missing_ok=True)

    def remove_small_disk(self, target: Path) -> None:
        """Copy what lies on it to a place that outlasts this program, and unmount it."""
        shutil.copytree(self.data, target, ignore=shutil.ignore_patterns(FILLER))
        subprocess.run(["umount", self.data], check=True)


def set_up(members: Sequence[Member], small_disk: Member | None) -> str:
    """Make the cluster on disk; an admin's token. Blocking."""
    for member in members:
        member.prepare()
    if small_disk is not None:
        options = f"size={DISK_BYTES},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", small_disk.data], check=True)
        small_disk.has_small_disk = True
    first, *others = members
    records = [member.record for member in members]
    setup.init_cluster(
        first.data,
        coordinator_id=first.id,
        cluster=CLUSTER_NAME,
        members=records,
        replicas=REPLICAS,
        write_quorum=WRITE_QUORUM,
        development=True,
    )
    for member in others:
        setup.init_from_bundle(member.data, first.data / "cluster.bundle", member.id)
    return _admin_token(first.data)


def _admin_token(data: Path) -> str:
    """Valid since an hour ago, so that a clock that is behind takes it too."""
    files = CoordinatorFiles(data)
    store = Store(files.state)
    try:
        authority = SigningAuthority(
            store, read_secret(files.cluster_key), CLUSTER_NAME, files.root.read_text("ascii")
        )
        return authority.sign_user_token(
            subject=setup.ADMIN_USER_ID,
            generation=store.token_generation(setup.ADMIN_USER_ID) or 0,
            roles=("admin",),
            groups=(),
            at_ms=now_ms() - 3_600_000,
            ttl_seconds=TOKEN_TTL_S,
            token_id="chaos",
        )
    finally:
        store.close()
