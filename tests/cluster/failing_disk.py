"""A file system of its own that can be made to fail as real ones do; a test is skipped where it cannot."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SIZE_BYTES = 1 << 30  # sparse: little of it is written
_SYS = Path("/sys/fs/ext4")


class FailingDisk:
    """An ext4 file system in a file, mounted at `path`."""

    def __init__(self, image: Path, path: Path) -> None:
        self._image = image
        self.path = path

    def mount(self) -> None:
        """Repaired first, if it has failed."""
        _run("e2fsck", "-fy", str(self._image), codes=(0, 1))
        _run("mount", "-o", "loop,errors=remount-ro", str(self._image), str(self.path))
        self._device = Path(_run("findmnt", "-no", "SOURCE", str(self.path)).strip()).name

    def fail(self) -> None:
        """An error of the file system, which makes it read-only under those who have files open."""
        (_SYS / self._device / "trigger_fs_error").write_text("1")

    def unmount(self) -> None:
        """Whoever still has files open there keeps what is left of it."""
        _run("umount", "--lazy", str(self.path), codes=(0, 1, 32))


@contextmanager
def failing_disk(image: Path, path: Path) -> Iterator[FailingDisk]:
    """Mounted at `path`, a directory that is there, until the end."""
    missing = [name for name in ("mkfs.ext4", "e2fsck", "mount", "findmnt") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing or not Path("/dev/loop-control").exists():
        pytest.skip("no file system can be mounted here")
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    disk = FailingDisk(image, path)
    try:
        _run("mkfs.ext4", "-q", str(image))
        disk.mount()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error.stderr}")
    if not (_SYS / disk._device / "trigger_fs_error").exists():
        disk.unmount()
        pytest.skip("this kernel cannot make a file system fail")
    try:
        yield disk
    finally:
        disk.unmount()
        image.unlink()


def _run(*command: str, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode not in codes:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout
