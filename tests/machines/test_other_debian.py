"""The package for the other release of Debian is made on it, and three machines of it become a cluster."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from release.wheels import epoch
from tests.debian_packages import require
from tests.machines.bed import bed, make_base
from tests.machines.conftest import COMMANDS_MAX, HEALTHY_S_MAX, PROGRAMS
from tests.machines.manual import follow
from tests.machines.operator import UNITS, shown
from tests.sources import ROOT, committed_files

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

SUITE = "trixie"
BUILD_PROGRAMS = ("python3", "python3-venv", "make", "binutils", "ca-certificates")
# What `pip` is told on this machine holds there too: where it asks, and whom it trusts.
OURS = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/pip.conf",
    "/etc/xdg/pip",
    str(Path.home() / ".config" / "pip"),
    "/etc/ssl/certs/ca-certificates.crt",
)
BUILD_TIMEOUT_S = 900
BUILD = """
mount -t proc proc "$0/proc"; mount --bind /dev "$0/dev"
exec chroot "$0" sh -c "cd /src && make --silent deb"
"""


@pytest.fixture(scope="module")
def other_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The .deb, made where it will run. Skips the test where that Debian cannot be had."""
    require(PROGRAMS)
    try:
        root = make_base(tmp_path_factory.mktemp("build"), suite=SUITE, included=BUILD_PROGRAMS)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no {SUITE} can be had: {error}")
    for path in committed_files():
        copy = root / "src" / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    for name in filter(os.path.exists, OURS):
        (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["cp", "--recursive", "--dereference", "--no-target-directory", name, root / name[1:]], check=True
        )
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-euc", BUILD, str(root)],
        env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch())},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return root / "src" / done.stdout.split()[-3].removeprefix("/src/")


def test_three_machines_of_the_other_debian_become_a_cluster(
    other_package: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = make_base(tmp_path_factory.mktemp("base"), suite=SUITE)
    with bed(tmp_path_factory.mktemp("machines"), base) as machines:
        for machine in machines:
            machine.copy_in(other_package, "/srv/")
        effort = follow(machines)
        print(f"{SUITE}: from package to healthy: {effort.commands} commands, {effort.took_s:.1f} s")
        assert effort.commands <= COMMANDS_MAX
        assert effort.took_s <= HEALTHY_S_MAX
        assert [shown(machines[0], unit, "ActiveState") for unit in UNITS] == ["active", "active"]
