"""`python -m tests.memory_disk COMMAND...`: run the default suite with the files of its tests in memory.

Without this the suite waits for disks half of its time: it syncs what it deletes a moment later. Here TMPDIR
is a file system of its own in memory, ext4 as on a disk: a plain tmpfs answers some calls in another way
(RWF_NOWAIT, posix_fadvise), so other paths of the product would be tested. It is in a namespace of this
command, and ends with the command.

Where this needs what the machine does not give (root, loop devices, memory), or TMPDIR names a place already,
the command runs as it is.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
INSIDE: Final = "FILESTORE_MEMORY_DISK"  # set in the namespace, to the size
DISK_GIB: Final = 16  # it takes as much memory as its files have
FILES_GIB_MAX: Final = 8  # at a time; four have been seen
AVAILABLE_GIB_MIN: Final = 12
NAMESPACE: Final = ("unshare", "--mount", "--propagation", "private")


def why_not() -> str:
    """Return what this machine lacks, "" for nothing."""
    if "TMPDIR" in os.environ:
        return "TMPDIR is set"
    if os.geteuid() != 0:
        return "only root can mount a file system"
    if missing := [each for each in ("unshare", "mkfs.ext4", "mount") if shutil.which(each) is None]:
        return f"there is no {missing[0]} command"
    if not os.path.ismount(MEMORY):
        return f"{MEMORY} is no file system"
    if (free_gib := shutil.disk_usage(MEMORY).free >> 30) < FILES_GIB_MAX:
        return f"{MEMORY} has room for {free_gib} GiB, and the files take up to {FILES_GIB_MAX}"
    lines = Path("/proc/meminfo").read_text().splitlines()
    available_kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    if available_kib < AVAILABLE_GIB_MIN << 20:
        return f"{available_kib >> 20} GiB of memory are available, and it takes {AVAILABLE_GIB_MIN}"
    return ""


def mounted() -> Path:
    """Mount a new file system, and return where it is. Raises CalledProcessError, OSError."""
    image, directory = MEMORY / f"filestore-tests-{os.getpid()}.img", MEMORY / "filestore-tests"
    directory.mkdir(exist_ok=True)
    try:
        with image.open("wb") as file:
            file.truncate(DISK_GIB << 30)
        options = ("-q", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1", "-m", "0")
        subprocess.run(["mkfs.ext4", *options, str(image)], check=True)
        subprocess.run(["mount", "-o", "loop,noatime,discard", str(image), str(directory)], check=True)
    finally:
        image.unlink(missing_ok=True)  # the loop device keeps it until the namespace ends
    return directory


def main(command: list[str]) -> None:
    """Replace this process by the command."""
    reason = "" if os.environ.get(INSIDE) else why_not()
    if os.environ.pop(INSIDE, ""):
        try:
            os.environ["TMPDIR"] = str(mounted())
        except (OSError, subprocess.CalledProcessError) as error:
            reason = str(error)
    elif not reason:
        os.environ[INSIDE] = str(DISK_GIB)
        command = [*NAMESPACE, sys.executable, "-m", "tests.memory_disk", *command]
    if reason:
        print(f"The files of tests are on a disk: {reason}.", flush=True)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
