"""Three machines on this one: Debian with systemd in containers, a network of their own, a disk for each.

All of it lives in a mount and a network namespace that end with the process that holds them, so nothing is
left of it, and no machine reaches any network but theirs. A machine that loses power finds on its disk what
had been written there, and nothing that only the kernel still had in memory.
"""

import os
import platform
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from deploy.processes import wait_until

BRIDGE = "filestore0"
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
SHARE = "/mnt/snapshots"  # on machines that have one, it is the same for all
DISK_BYTES = 3 << 30  # sparse
COPIES_MAX = 20  # of a disk that is written to
BOOT_TIMEOUT_S = 120.0
COMMAND_TIMEOUT_S = 300.0
# What a machine has before the package comes: the test's network leads nowhere from where apt could fetch it.
INCLUDED = ("systemd", "systemd-sysv", "dbus", "python3", "iproute2", "procps", "bash-completion", "man-db")
ENVIRONMENT = (
    "HOME=/srv",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG=C.UTF-8",
)
# A control group for each: in one, systemd of the second machine would find that of the first.
ENTER_GROUP = """for tree in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
    [ -e "$tree/cgroup.procs" ] || continue
    mkdir -p "$tree/$0" && echo $$ > "$tree/$0/cgroup.procs"
done
exec "$@"
"""
NETWORK = """[Match]
Name=host0

[Network]
Address={address}/24
LinkLocalAddressing=no
"""


class Failed(AssertionError):
    """A command on a machine has failed."""


class Namespaces:
    """A process that does nothing but hold a mount and a network namespace with a bridge in it."""

    def __init__(self, stack: ExitStack) -> None:
        # Its word comes after unshare(2): whoever entered earlier would enter our own.
        holding = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", "echo; exec cat"]
        self._holder = stack.enter_context(
            subprocess.Popen(holding, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        stack.callback(self._holder.kill)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"\n", "no namespaces can be made here"
        self.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "link", "add", BRIDGE, "type", "bridge")
        self.run("ip", "link", "set", BRIDGE, "up")

    def inside(self, *command: str) -> list[str]:
        """The command that runs this one in them."""
        return ["nsenter", "--target", str(self._holder.pid), "--mount", "--net", "--", *command]

    def run(self, *command: str) -> None:
        """Run it in them. Raises CalledProcessError."""
        subprocess.run(self.inside(*command), check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)


class Machine:
    """One of them. It runs after `boot`."""

    def __init__(
        self,
        name: str,
        address: str,
        directory: Path,
        base: Path,
        namespaces: Namespaces,
        share: Path | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self._namespaces = namespaces
        self._log = directory / "console.log"
        self._disk = directory / "disk.img"
        self._data = directory / "data"
        self._share = share
        self.root = directory / "root"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._leader = 0
        above, work = directory / "above", directory / "work"
        for made in (self._data, self.root, above, work):
            made.mkdir(parents=True)
        layers = f"lowerdir={base},upperdir={above},workdir={work}"
        namespaces.run("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root))
        self._make_disk()
        self._mount()
        self.write("/etc/hostname", f"{name}\n")
        self.set_address(address)

    def set_address(self, address: str) -> None:
        """From its next start on, or once its network is set up anew."""
        self.address = address
        self.write("/etc/systemd/network/10-host0.network", NETWORK.format(address=address))

    def boot(self) -> None:
        """Switch it on, and wait until systemd has started everything."""
        options = (
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--link-journal=no",
            "--resolv-conf=off",
        )
        bound = [f"--bind={self._data}:/var/lib/filestore"]
        if self._share is not None:
            bound.append(f"--bind={self._share}:{SHARE}")
        place = (f"--machine={self.name}", f"--directory={self.root}", f"--network-bridge={BRIDGE}", *bound)
        group = ("sh", "-c", ENTER_GROUP, f"filestore-{self.name}")
        with self._log.open("ab") as log:
            self._nspawn = subprocess.Popen(
                self._namespaces.inside(*group, "systemd-nspawn", *options, "--timezone=off", *place),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(self._has_leader, what=f"the first process of {self.name}", timeout_s=BOOT_TIMEOUT_S)
        wait_until(self._has_booted, what=f"{self.name}; see {self._log}", timeout_s=BOOT_TIMEOUT_S)

    def cut_power(self) -> None:
        """Everything on it stops at once, and what its kernel had not written yet is lost.

        The kernel writes on while the disk is copied: its journal may be newer in the copy than what that is
        about, as on no disk. A copy that is equal afterwards is the disk as it was at one moment in between.
        """
        self._kill()
        torn = self._disk.with_suffix(".torn")
        for _ in range(COPIES_MAX):
            subprocess.run(["cp", "--sparse=always", str(self._disk), str(torn)], check=True)
            if subprocess.run(["cmp", "--quiet", str(self._disk), str(torn)], check=False).returncode == 0:
                break
        else:
            raise AssertionError(f"the disk of {self.name} does not come to rest")
        self._namespaces.run("umount", str(self._data))
        torn.replace(self._disk)
        self._mount()

    def end(self) -> None:
        """Switch it off, whatever it does."""
        self._kill()

    def take_disk(self, other: "Machine") -> None:
        """This one has the disk of the other from now on, in place of its own. Both are off."""
        for machine in (self, other):
            self._namespaces.run("umount", str(machine._data))
        other._disk.replace(self._disk)
        self._mount()

    def run(self, script: str, *, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """What the script prints, as root in a shell of the machine. Raises Failed with what went wrong."""
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--root")
        command = [
            "nsenter",
            "--target",
            str(self._leader),
            *spaces,
            "--",
            "/usr/bin/env",
            "-i",
            *ENVIRONMENT,
        ]
        done = subprocess.run(
            [*command, "/bin/bash", "-euo", "pipefail", "-c", f"cd\n{script}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"{self.name}: {script}\n{done.stdout}{done.stderr}code {done.returncode}")
        return done.stdout

    def command_beside(self, *command: str) -> list[str]:
        """What runs a command of this system on the network of the machines."""
        return self._namespaces.inside(*command)

    def succeeds(self, script: str) -> bool:
        """Whether it ends well."""
        with suppress(Failed):
            self.run(script)
            return True
        return False

    def write(self, path: str, content: str | bytes) -> None:
        """Make a file on its file system, through the eyes of this machine."""
        data = content.encode() if isinstance(content, str) else content
        place = str(self.root / path.removeprefix("/"))
        script = f"mkdir -p {Path(place).parent} && cat > {place}"
        subprocess.run(self._namespaces.inside("sh", "-c", script), input=data, check=True)

    def copy_in(self, source: Path, directory: str) -> None:
        """Copy a file of ours to a directory of the machine."""
        self._namespaces.run("cp", str(source), str(self.root / directory.removeprefix("/")))

    def _make_disk(self) -> None:
        with self._disk.open("wb") as disk:
            disk.truncate(DISK_BYTES)
        self._namespaces.run("mkfs.ext4", "-q", "-m", "0", str(self._disk))

    def _mount(self) -> None:
        self._namespaces.run("mount", "-o", "loop", str(self._disk), str(self._data))

    def _unplug(self) -> None:
        """Take it off the network. The kernel would do that with the machine's last connection only.

        That of a killed process is kept while its last bytes are sent again and again, 100 s to peers that
        are off as well: no machine without power does that.
        """
        command = self._namespaces.inside("ip", "link", "delete", f"vb-{self.name}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "Cannot find device" in done.stderr, done.stderr

    def _has_leader(self) -> bool:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, f"{self.name} does not start: {self._log.read_text()[-2000:]}"
        for child in Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split():
            with suppress(OSError):
                status = Path(f"/proc/{child}/status").read_text()
                if re.search(r"^NSpid:.*\t1$", status, re.MULTILINE):
                    self._leader = int(child)
                    return True
        return False

    def _has_booted(self) -> bool:
        with suppress(Failed):
            return self.run("systemctl is-system-running || true").strip() in {"running", "degraded"}
        return False

    def _kill(self) -> None:
        """When this returns nobody is left there: one that lived on would acknowledge what its disk lacks."""
        if self._nspawn is not None:
            self._unplug()
            with suppress(ProcessLookupError):
                ended = os.pidfd_open(self._leader)
                try:
                    signal.pidfd_send_signal(ended, signal.SIGKILL)
                    # The first process of a namespace ends after all others of it (pid_namespaces(7)).
                    assert select.select([ended], [], [], BOOT_TIMEOUT_S)[0], f"{self.name} does not end"
                finally:
                    os.close(ended)
            self._nspawn.kill()
            self._nspawn.wait()
            self._nspawn = None


@contextmanager
def bed(
    directory: Path, base: Path, addresses: Sequence[str] = ADDRESSES, *, has_share: bool = False
) -> Iterator[list[Machine]]:
    """Machines that have booted, three or with these addresses. Skips the test where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("machines need root")
    with ExitStack() as stack:
        namespaces = Namespaces(stack)
        share = directory / "share" if has_share else None
        if share is not None:
            share.mkdir(parents=True)
        machines = []
        for number, address in enumerate(addresses, 1):
            machine = Machine(f"m{number}", address, directory / f"m{number}", base, namespaces, share)
            stack.callback(machine.end)
            machines.append(machine)
        for machine in machines:
            machine.boot()
        yield machines


def make_base(directory: Path, *, suite: str, included: Sequence[str] = INCLUDED) -> Path:
    """The file system of a Debian that was just installed, with packages from where this one has them."""
    base = directory / suite
    ours = next(
        path
        for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
        if path.exists()
    )
    sources = directory / f"{suite}{ours.suffix}"
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    sources.write_text(re.sub(rf"\b{release}\b", suite, ours.read_text()))
    began_s = time.monotonic()
    enable = 'chroot "$1" systemctl enable systemd-networkd.service'
    hooks = [f"--customize-hook={enable}"] if "systemd" in included else []
    subprocess.run(
        [
            "mmdebstrap",
            "--quiet",
            "--variant=apt",
            f"--include={','.join(included)}",
            *hooks,
            suite,
            str(base),
            str(sources),
        ],
        check=True,
        timeout=900,
    )
    print(f"a Debian {suite} in {time.monotonic() - began_s:.0f} s, {_size_mb(base)} MB")
    return base


def _size_mb(path: Path) -> int:
    done = subprocess.run(["du", "-sm", str(path)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def forget(base: Path) -> None:
    """Remove it."""
    shutil.rmtree(base, ignore_errors=True)
