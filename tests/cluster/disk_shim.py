"""Disks of running nodes that refuse, fail, fill up or hang, and work again: by a preloaded library.

Rules lie in a file that every process has mapped: they hold at once, for all threads, at almost no cost while
there are none. Each names the calls, an error (or how long each takes), and a part of the paths. A test is
skipped where nothing can be compiled.
"""

import errno
import mmap
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

RULES_BYTES: Final = 4096
CHANGES: Final = "CXWSRUM"  # create, open to write, write, sync, rename, unlink, make a directory
READS: Final = "OGL"  # open to read, get bytes, list
EVERYTHING: Final = CHANGES + READS
_HANG: Final = -1

_SHIM = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define RULES_BYTES 4096
static const volatile char *rules;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK_RULES");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, RULES_BYTES, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) rules = mapped;
    close(file);
}

/* The error for this call on this path; 0 for none. A rule is a line: CALLS ERROR PART. */
static int refused(char call, const char *path) {
    char copy[RULES_BYTES + 1], calls[32], part[512];
    for (int again = 0;; again = 1) {
        if (!rules || !rules[0]) return 0;
        memcpy(copy, (const char *)rules, RULES_BYTES);
        copy[RULES_BYTES] = 0;
        int found = 0;
        for (char *line = copy; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
            int number = 0;
            if (sscanf(line, "%31s %d %511s", calls, &number, part) == 3 && strchr(calls, call)
                && strstr(path, part)) {
                found = number;
                break;
            }
        }
        if (found >= 0) return found;
        if (found < -1) { usleep(-found * 1000); return 0; }
        usleep(20000); /* it hangs as long as the rule is there */
    }
}

static void path_at(int directory, const char *name, char *path) {
    char link[64];
    ssize_t length = 0;
    if (name && name[0] == '/') { snprintf(path, PATH_MAX, "%s", name); return; }
    if (directory == AT_FDCWD) { snprintf(path, PATH_MAX, "%s", name ? name : ""); return; }
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    length = readlink(link, path, PATH_MAX - 300);
    if (length < 0) length = 0;
    path[length] = 0;
    if (name) snprintf(path + length, PATH_MAX - length, "/%s", name);
}

static int no_at(char call, int directory, const char *name) {
    char path[PATH_MAX];
    if (!rules || !rules[0]) return 0;
    path_at(directory, name, path);
    int error = refused(call, path);
    if (error) errno = error;
    return error;
}

/* Which call an open is: to read, to write what is there, or to create. */
static char open_kind(int at, const char *path, int flags) {
    if ((flags & O_ACCMODE) == O_RDONLY && !(flags & O_CREAT)) return 'O';
    return (flags & O_CREAT) && faccessat(at, path, F_OK, AT_SYMLINK_NOFOLLOW) ? 'C' : 'X';
}

static int no_open(int at, const char *path, int flags) {
    return rules && rules[0] ? no_at(open_kind(at, path, flags), at, path) : 0;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define MODE() int mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); \
    mode = va_arg(rest, int); va_end(rest); }
#define OPEN(name) int name(const char *path, int flags, ...) { MODE(); REAL(name); \
    return no_open(AT_FDCWD, path, flags) ? -1 : real(path, flags, mode); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { MODE(); REAL(name); \
    return no_open(at, path, flags) ? -1 : real(at, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

ssize_t read(int file, void *bytes, size_t count) {
    REAL(read); return no_at('G', file, NULL) ? -1 : real(file, bytes, count); }
ssize_t pread(int file, void *bytes, size_t count, off_t at) {
    REAL(pread); return no_at('G', file, NULL) ? -1 : real(file, bytes, count, at); }
ssize_t pread64(int file, void *bytes, size_t count, off64_t at) {
    REAL(pread64); return no_at('G', file, NULL) ? -1 : real(file, bytes, count, at); }
ssize_t preadv(int file, const struct iovec *parts, int count, off_t at) {
    REAL(preadv); return no_at('G', file, NULL) ? -1 : real(file, parts, count, at); }
ssize_t preadv64(int file, const struct iovec *parts, int count, off64_t at) {
    REAL(preadv64); return no_at('G', file, NULL) ? -1 : real(file, parts, count, at); }
ssize_t preadv2(int file, const struct iovec *parts, int count, off_t at, int flags) {
    REAL(preadv2); return no_at('G', file, NULL) ? -1 : real(file, parts, count, at, flags); }
ssize_t preadv64v2(int file, const struct iovec *parts, int count, off64_t at, int flags) {
    REAL(preadv64v2); return no_at('G', file, NULL) ? -1 : real(file, parts, count, at, flags); }
ssize_t write(int file, const void *bytes, size_t count) {
    REAL(write); return no_at('W', file, NULL) ? -1 : real(file, bytes, count); }
ssize_t pwrite(int file, const void *bytes, size_t count, off_t at) {
    REAL(pwrite); return no_at('W', file, NULL) ? -1 : real(file, bytes, count, at); }
ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) {
    REAL(pwrite64); return no_at('W', file, NULL) ? -1 : real(file, bytes, count, at); }
int ftruncate(int file, off_t size) {
    REAL(ftruncate); return no_at('W', file, NULL) ? -1 : real(file, size); }
int ftruncate64(int file, off64_t size) {
    REAL(ftruncate64); return no_at('W', file, NULL) ? -1 : real(file, size); }
int fallocate(int file, int mode, off_t at, off_t size) {
    REAL(fallocate); return no_at('W', file, NULL) ? -1 : real(file, mode, at, size); }
int utimensat(int at, const char *path, const struct timespec times[2], int flags) {
    REAL(utimensat); return no_at('W', at, path) ? -1 : real(at, path, times, flags); }
int fchmod(int file, mode_t mode) {
    REAL(fchmod); return no_at('W', file, NULL) ? -1 : real(file, mode); }
int fsync(int file) {
    REAL(fsync); return no_at('S', file, NULL) ? -1 : real(file); }
int fdatasync(int file) {
    REAL(fdatasync); return no_at('S', file, NULL) ? -1 : real(file); }
int rename(const char *from, const char *to) {
    REAL(rename); return no_at('R', AT_FDCWD, from) || no_at('R', AT_FDCWD, to) ? -1 : real(from, to); }
int renameat(int from_at, const char *from, int to_at, const char *to) {
    REAL(renameat);
    return no_at('R', from_at, from) || no_at('R', to_at, to) ? -1 : real(from_at, from, to_at, to); }
int unlink(const char *path) {
    REAL(unlink); return no_at('U', AT_FDCWD, path) ? -1 : real(path); }
int rmdir(const char *path) {
    REAL(rmdir); return no_at('U', AT_FDCWD, path) ? -1 : real(path); }
int unlinkat(int at, const char *path, int flags) {
    REAL(unlinkat); return no_at('U', at, path) ? -1 : real(at, path, flags); }
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir); return no_at('M', AT_FDCWD, path) ? -1 : real(path, mode); }
int mkdirat(int at, const char *path, mode_t mode) {
    REAL(mkdirat); return no_at('M', at, path) ? -1 : real(at, path, mode); }
DIR *fdopendir(int file) {
    REAL(fdopendir); return no_at('L', file, NULL) ? NULL : real(file); }
DIR *opendir(const char *path) {
    REAL(opendir); return no_at('L', AT_FDCWD, path) ? NULL : real(path); }
"""


class DiskRules:
    """What the disks of the processes do that were started with `environment`; for one thread."""

    def __init__(self, directory: Path) -> None:
        """Compiles the library there. Raises OSError, CalledProcessError."""
        self.library, self._path = directory / "disk_shim.so", directory / "disk_rules"
        source = directory / "disk_shim.c"
        source.write_text(_SHIM)
        command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-o", str(self.library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        self._path.write_bytes(bytes(RULES_BYTES))
        with self._path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), RULES_BYTES)
        self._rules: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """Of the processes."""
        return {"LD_PRELOAD": str(self.library), "DISK_RULES": str(self._path)}

    def add(self, part: str | Path, calls: str, number: int) -> str:
        """From now on these calls on paths with this part have this error; the rule, to be taken away."""
        rule = f"{calls} {number} {part}\n"
        self._rules.append(rule)
        self._write()
        return rule

    def remove(self, rule: str) -> None:
        """It holds no more."""
        self._rules.remove(rule)
        self._write()

    def clear(self) -> None:
        """Every disk works."""
        self._rules.clear()
        self._write()

    @contextmanager
    def failing(self, part: str | Path, calls: str, number: int) -> Iterator[None]:
        """While it lasts."""
        rule = self.add(part, calls, number)
        try:
            yield
        finally:
            self.remove(rule)

    @contextmanager
    def hanging(self, part: str | Path, calls: str) -> Iterator[None]:
        """While it lasts these calls do not return."""
        with self.failing(part, calls, _HANG):
            yield

    @contextmanager
    def slow(self, part: str | Path, calls: str, delay_ms: int) -> Iterator[None]:
        """While it lasts each of these calls takes so long, two milliseconds at least, and then succeeds."""
        with self.failing(part, calls, -delay_ms):
            yield

    def _write(self) -> None:
        raw = "".join(self._rules).encode()
        assert len(raw) < RULES_BYTES
        self._mapped[:1] = b"\0"  # nobody reads half of it
        self._mapped[1:] = raw[1:].ljust(RULES_BYTES - 1, b"\0")
        self._mapped[:1] = raw[:1] or b"\0"


def disk_rules(directory: Path, monkeypatch: pytest.MonkeyPatch) -> DiskRules:
    """For the processes that are started from now on; skips the test where there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (Debian: apt install gcc)")
    rules = DiskRules(directory)
    for name, value in rules.environment.items():
        monkeypatch.setenv(name, value)
    return rules


KINDS: Final = {  # what a disk does to its calls, by how it has gone wrong
    "read-only": (CHANGES, errno.EROFS),
    "failing": (EVERYTHING, errno.EIO),
    "full": ("CWM", errno.ENOSPC),
    "vanished": (EVERYTHING, errno.ENODEV),
}
