"""What the suite of machines makes once: the package, a Debian, and three machines that form a cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian_packages import require
from tests.machines.bed import Machine, bed, make_base
from tests.machines.manual import follow
from tests.machines.operator import copy_token
from tests.machines.products import made

INSTALL_TIMEOUT_S = 600.0
PROGRAMS = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container", "mkfs.ext4": "e2fsprogs"}
SUITE = "bookworm"
COMMANDS_MAX, HEALTHY_S_MAX = 6, 300.0  # promised, from the package to a healthy cluster of three machines


@pytest.fixture(scope="session")
def package() -> Path:
    """The .deb, made now."""
    if not Path("/etc/debian_version").exists():
        pytest.skip("no Debian, on which alone its package is made")
    return made("deb")


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian that has just been installed."""
    require(PROGRAMS, timeout_s=INSTALL_TIMEOUT_S)
    return make_base(tmp_path_factory.mktemp("base"), suite=SUITE)


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory, base: Path, package: Path) -> Iterator[list[Machine]]:
    """Three of them, on which the manual has been followed to its end."""
    with bed(tmp_path_factory.mktemp("machines"), base) as booted:
        for machine in booted:
            machine.copy_in(package, "/srv/")
        effort = follow(booted)
        print(f"from package to healthy: {effort.commands} commands, {effort.took_s:.1f} s")
        assert effort.commands <= COMMANDS_MAX
        assert 0 < effort.took_s <= HEALTHY_S_MAX
        copy_token(booted)
        yield booted
