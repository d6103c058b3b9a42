"""Libraries in C that are preloaded into the processes of a test, and the file that tells them what to do.

Every process has the file mapped, so what a test writes there holds at once, for all threads, at almost no
cost while there is nothing. A test is skipped where nothing can be compiled.
"""

import mmap
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

MAPPED_BYTES: Final = 4096

# What each library begins with: `mapped` is the file whose path is in the environment, NULL without one.
_BEGINNING: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAPPED_BYTES 4096
#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
static const volatile char *mapped;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("@NAME@");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, MAPPED_BYTES, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) mapped = found;
    close(file);
}

/* The lines of the file as they are now, in `copy`, of MAPPED_BYTES + 1; 0 for none. */
static int mapped_lines(char *copy) {
    if (!mapped || !mapped[0]) return 0;
    memcpy(copy, (const char *)mapped, MAPPED_BYTES);
    copy[MAPPED_BYTES] = 0;
    return 1;
}

static char *next_line(char *line) {
    char *end = strchr(line, '\n');
    return end && end[1] ? end + 1 : NULL;
}
"""


def compiled(directory: Path, name: str, source: str) -> Path:
    """The library made there of C `source`; `name`: of the variable with the path of its file. Skips the test
    where there is no compiler. Raises OSError, CalledProcessError.
    """
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (Debian: apt install gcc)")
    stem = name.lower()
    text, library = directory / f"{stem}.c", directory / f"{stem}.so"
    text.write_text(_BEGINNING.replace("@NAME@", name) + source)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", library, text, "-ldl"], check=True)
    return library


class Preloaded:
    """One library and its file; `environment` is that of the processes."""

    def __init__(self, directory: Path, name: str, source: str) -> None:
        """As `compiled`."""
        library, path = compiled(directory, name, source), directory / name.lower()
        path.write_bytes(bytes(MAPPED_BYTES))
        with path.open("r+b") as file:
            self.mapped = mmap.mmap(file.fileno(), MAPPED_BYTES)
        self.environment = {"LD_PRELOAD": str(library), name: str(path)}

    def preload(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Into the processes that are started from now on."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)


class PreloadedLines(Preloaded):
    """What tells the library what to do is a list of lines; for one thread."""

    def __init__(self, directory: Path, name: str, source: str) -> None:
        super().__init__(directory, name, source)
        self._lines: list[str] = []

    def add_line(self, line: str) -> None:
        """It holds from now on."""
        self._lines.append(f"{line}\n")
        self._write()

    def remove_line(self, line: str) -> None:
        """It holds no more."""
        self._lines.remove(f"{line}\n")
        self._write()

    def clear(self) -> None:
        """None holds."""
        self._lines.clear()
        self._write()

    def _write(self) -> None:
        raw = "".join(self._lines).encode()
        assert len(raw) < MAPPED_BYTES
        self.mapped[:1] = b"\0"  # nobody reads half of it
        self.mapped[1:] = raw[1:].ljust(MAPPED_BYTES - 1, b"\0")
        self.mapped[:1] = raw[:1] or b"\0"
