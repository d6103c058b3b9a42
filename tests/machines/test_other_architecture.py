"""The package for another architecture is made here, and its command runs in qemu."""

import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from release.target import MACHINES
from tests.debian_packages import require
from tests.machines.products import made

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OWN = {machine: architecture for architecture, machine in MACHINES.items()}[platform.machine()]
OTHER = next(architecture for architecture in MACHINES if architecture != OWN)
QEMU = f"qemu-{MACHINES[OTHER]}-static"
PROGRAMS = {"mmdebstrap": "mmdebstrap", QEMU: "qemu-user-static"}
SUITE = "bookworm"
PYTHON = "/opt/filestore/bin/python3"
EXTRACT_S, COMMAND_S = 600.0, 120.0


@pytest.fixture(scope="module")
def other_package(package: Path) -> Path:
    """The .deb, made now, after our own."""
    assert package.exists()
    return made("deb", f"ARCH={OTHER}")


@pytest.fixture(scope="module")
def emulated(other_package: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a command of the package among the files of a Debian for that architecture."""
    require(PROGRAMS)
    root = tmp_path_factory.mktemp("emulated") / "root"
    sources = next(
        path
        for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
        if path.exists()
    )
    extract = [
        "mmdebstrap",
        "--quiet",
        "--variant=extract",
        f"--architectures={OTHER}",
        "--include=python3,libc6",
    ]
    subprocess.run([*extract, SUITE, str(root), str(sources)], check=True, timeout=EXTRACT_S)
    subprocess.run(["dpkg-deb", "--extract", str(other_package), str(root)], check=True)
    shutil.copy(shutil.which(QEMU) or QEMU, root / "qemu")

    def run(*arguments: str) -> str:
        command = ["chroot", str(root), "/qemu", PYTHON, "-I", "/opt/filestore/bin/filestore", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def files(package: Path) -> list[str]:
    """What is in it; the names of libraries say for what they are."""
    listed = subprocess.run(
        ["dpkg-deb", "--contents", str(package)], capture_output=True, text=True, check=True
    )
    names = (line.split(maxsplit=5)[5] for line in listed.stdout.splitlines())
    return sorted(re.sub("|".join(MACHINES.values()), "MACHINE", name) for name in names)


def test_package_for_another_architecture_has_the_same_files_and_says_for_what_it_is(
    package: Path, other_package: Path
) -> None:
    assert files(other_package) == files(package)

    def field(path: Path, name: str) -> str:
        command = ["dpkg-deb", "--field", str(path), name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert field(other_package, "Architecture") == OTHER
    for name in ("Version", "Depends"):
        assert field(other_package, name) == field(package, name)


def test_command_of_the_other_architecture_runs(emulated: Callable[..., str]) -> None:
    """Compiled libraries too: a coordinator is made with keys, certificates, a log and a database."""
    assert emulated("--version").startswith("filestore, version ")
    told = emulated(
        *("coordinator", "init", "--id", "c1", "--data", "/srv/c1", "--cluster", "lab"),
        *("--member", "c1=10.0.0.1", "--replicas", "1"),
    )
    assert "Ready to run" in told
    assert emulated("doctor", "--data", "/srv/c1").endswith("sound\n")
