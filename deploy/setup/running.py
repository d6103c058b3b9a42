"""How members run while a machine is set up: as units of systemd, or as children until it is done.

Tested by tests/unit/deploy/test_given_directory.py.
"""

import fcntl
import os
import pwd
import shutil
import ssl
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from ca.errors import Unavailable
from deploy.processes import Child, is_ready, start_child, stop_children, wait_until
from deploy.setup.plan import DATA, ROLES, MachinePlan

USER: Final = "filestore"  # of the units
READY_S: Final = 120.0  # a database may be long, and a disk slow
_SYSTEMD: Final = Path("/run/systemd/system")  # sd_booted(3)


class MemberProcesses(Protocol):
    """The processes of coordinator and node. A context manager, which leaves wanted processes running."""

    def start(self, role: str) -> None:
        """Have one of ROLES run, if it does not."""

    def wait_ready(self, role: str, context: ssl.SSLContext) -> None:
        """Until it serves. Raises Unavailable when it ends, or after READY_S."""

    def give_ownership(self, role: str) -> None:
        """Give the files in its directory to the user that it runs as."""

    def remaining_commands(self) -> list[str]:
        """The commands that are left to the operator."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def members_of(plan: MachinePlan, *, start: bool) -> MemberProcesses:
    """Units where they are installed and this is root; else children, which end when all is set up."""
    has_units = plan.data == DATA and os.geteuid() == 0 and has_systemd_units()
    return Units(plan) if has_units and start else Children(plan, has_units=has_units)


def has_systemd_units() -> bool:
    """Whether systemd runs here and knows the units of the package."""
    if not _SYSTEMD.is_dir() or shutil.which("systemctl") is None:
        return False
    asked = ["systemctl", "cat", *(unit_of(role) for role in ROLES)]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def how_to_run(role: str, data: Path) -> str:
    """Return the command that runs a member: through its unit, if systemd has one for this directory."""
    if data.absolute() == DATA / role and has_systemd_units():
        return f"systemctl enable --now {unit_of(role).removesuffix('.service')}"
    return f"filestore {role} run --data {data}"


def unit_of(role: str) -> str:
    """The unit of one of ROLES."""
    return f"filestore-{role}.service"


class Units:
    """Units of systemd, which run on and are started at each boot."""

    def __init__(self, plan: MachinePlan) -> None:
        self._plan = plan

    def start(self, role: str) -> None:
        """Have it run, if it does not. Raises Unavailable."""
        # a failure of an earlier start, which must not be mistaken for one of this start
        if _state(role) == "failed":
            _systemctl("reset-failed", unit_of(role))
        for command in (["enable"], ["start", "--no-block"]):
            _systemctl(*command, unit_of(role))

    def wait_ready(self, role: str, context: ssl.SSLContext) -> None:
        """Until it serves. Raises Unavailable, also as soon as systemd has given it up."""
        unit, (host, port) = unit_of(role), _place(self._plan, role)
        why = f"{unit} does not serve. `journalctl -u {unit}` says why."

        def serves() -> bool:
            if is_ready(port, context, host=host):
                return True
            if _state(role) == "failed":
                raise Unavailable(why)
            return False

        try:
            wait_until(serves, what=unit, timeout_s=READY_S)
        except Unavailable as error:
            raise Unavailable(why) from error

    def give_ownership(self, role: str) -> None:
        """Give its directory to the user of the units. One that runs has what it needs, and may have much."""
        if _state(role) != "active":
            give_directory(self._plan.directory(role))

    def remaining_commands(self) -> list[str]:
        """Nothing: they run."""
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Children:
    """Children of this process, as long as it takes to set the machine up; they end with it at the latest."""

    def __init__(self, plan: MachinePlan, *, has_units: bool) -> None:
        self._plan = plan
        self._has_units = has_units
        self._logs = tempfile.TemporaryDirectory(prefix="filestore-setup-")
        self._children: dict[str, Child] = {}

    def start(self, role: str) -> None:
        """Start it; one that its operator has started is left alone."""
        if role not in self._children and not is_held(self._plan.directory(role)):
            log = Path(self._logs.name) / f"{role}.log"
            arguments = [role, "run", "--data", str(self._plan.directory(role))]
            self._children[role] = start_child(role, arguments, log)

    def wait_ready(self, role: str, context: ssl.SSLContext) -> None:
        """Until it serves. Raises Unavailable.

        If its operator starts it at the same moment, only one of the two processes gets the lock of the
        directory. If that is the other one, the child ends, and the other one is left alone.
        """
        host, port = _place(self._plan, role)

        def serves() -> bool:
            child = self._children.get(role)
            if child is not None and not child.runs and is_held(self._plan.directory(role)):
                del self._children[role]
                watched.clear()
            return is_ready(port, context, host=host)

        watched = [self._children[role]] if role in self._children else []
        wait_until(serves, what=f"the {role}", timeout_s=READY_S, watched=watched)

    def give_ownership(self, role: str) -> None:
        """Give its directory to the user of the units, where there are units that are not to be started."""
        if self._has_units:
            give_directory(self._plan.directory(role))

    def remaining_commands(self) -> list[str]:
        """How to run those that were run here."""
        roles = [role for role in ROLES if role in self._children]
        if self._has_units and roles:
            return [f"systemctl enable --now {' '.join(map(unit_of, roles))}"]
        return [f"filestore {role} run --data {self._plan.directory(role)}" for role in roles]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop_children([self._children[role] for role in reversed(ROLES) if role in self._children])
        for role in self._children:
            self.give_ownership(role)
        self._logs.cleanup()


def is_held(data: Path) -> bool:
    """Whether a member runs in this directory: it keeps a lock on what is looked at here."""
    for name in ("node.lock", "log"):
        try:
            descriptor = os.open(data / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def give_directory(directory: Path, name: str = USER) -> None:
    """All in a directory belongs to the user of the units, where there is one.

    That user may write there meanwhile: what goes is left out, and no link leads elsewhere.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return
    for _, directories, files, descriptor in os.fwalk(directory):
        os.fchown(descriptor, user.pw_uid, user.pw_gid)
        for entry in (*directories, *files):
            with suppress(FileNotFoundError):
                os.chown(entry, user.pw_uid, user.pw_gid, dir_fd=descriptor, follow_symlinks=False)


def _place(plan: MachinePlan, role: str) -> tuple[str, int]:
    return plan.address, plan.api_port if role == "coordinator" else plan.node_api_port


def _state(role: str) -> str:
    """Return systemd's state of a unit: active, activating, inactive, failed and the like."""
    asked = ["systemctl", "show", "--property", "ActiveState", "--value", unit_of(role)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def _systemctl(*arguments: str) -> None:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"it ended with code {done.returncode}"
        raise Unavailable(f"systemctl {' '.join(arguments)}: {said}")
