"""The machine that a package is made for: this one, or of another architecture with the same Debian.

All that we hand out comes as wheels, so that nothing is compiled for another architecture, only chosen; and
bytecode is the same on all of them.
"""

import platform
import shutil
from dataclasses import dataclass
from typing import Final

from release.wheels import output

MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}  # as Debian and as wheels call them
_OLDEST_GLIBC: Final = 17  # minor of manylinux2014, the oldest that wheels are made for now


@dataclass(frozen=True)
class Target:
    """`architecture` is as Debian calls it."""

    architecture: str
    is_other: bool = False

    @property
    def pip_options(self) -> tuple[str, ...]:
        """For `pip download` and `pip install --target`: which wheels are right there."""
        if not self.is_other:
            return ()
        machine, glibc = MACHINES[self.architecture], int(platform.libc_ver()[1].split(".")[1])
        names = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in range(_OLDEST_GLIBC, glibc + 1))]
        return tuple(f"--platform={name}_{machine}" for name in names)

    @property
    def strip(self) -> str | None:
        """The program that takes symbols out of what is compiled for it; None where there is none here."""
        return shutil.which(f"{MACHINES[self.architecture]}-linux-gnu-strip" if self.is_other else "strip")


def target_of(architecture: str) -> Target:
    """Return the target with Debian's name, "" for this machine's.

    Raises SystemExit for one without wheels.
    """
    own = output("dpkg", "--print-architecture")
    if architecture in ("", own):
        return Target(own)
    if architecture not in MACHINES:
        raise SystemExit(f"make deb: ARCH is one of {', '.join(MACHINES)}")
    return Target(architecture, is_other=True)
