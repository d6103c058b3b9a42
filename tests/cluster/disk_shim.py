"""Disks of running nodes that refuse, fail, fill up or hang, and work again: by a preloaded library.

Each rule names the calls, an error (or how long each takes), and a part of the paths.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.preload import PreloadedLines

CHANGES: Final = "CXWSRUM"  # create, open to write, write, sync, rename, unlink, make a directory
READS: Final = "OGL"  # open to read, get bytes, list
EVERYTHING: Final = CHANGES + READS
_HANG: Final = -1

_SHIM = r"""
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The error for this call on this path; 0 for none. A rule is a line: CALLS ERROR PART. */
static int refused(char call, const char *path) {
    char copy[MAPPED_BYTES + 1], calls[32], part[512];
    for (;;) {
        if (!mapped_lines(copy)) return 0;
        int found = 0;
        for (char *line = copy; line; line = next_line(line)) {
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
    if (!mapped || !mapped[0]) return 0;
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
    return mapped && mapped[0] ? no_at(open_kind(at, path, flags), at, path) : 0;
}

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


class DiskRules(PreloadedLines):
    """What the disks of the processes do that were started with `environment`; for one thread."""

    def __init__(self, directory: Path) -> None:
        """Compiles the library there; skips the test where there is no compiler."""
        super().__init__(directory, "DISK_RULES", _SHIM)

    def add(self, part: str | Path, calls: str, number: int) -> str:
        """From now on these calls on paths with this part have this error; the rule, to be taken away."""
        rule = f"{calls} {number} {part}"
        self.add_line(rule)
        return rule

    def remove(self, rule: str) -> None:
        """It holds no more."""
        self.remove_line(rule)

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


def disk_rules(directory: Path, monkeypatch: pytest.MonkeyPatch) -> DiskRules:
    """For the processes that are started from now on; skips the test where there is no compiler."""
    rules = DiskRules(directory)
    rules.preload(monkeypatch)
    return rules


KINDS: Final = {  # what a disk does to its calls, by how it has gone wrong
    "read-only": (CHANGES, errno.EROFS),
    "failing": (EVERYTHING, errno.EIO),
    "full": ("CWM", errno.ENOSPC),
    "vanished": (EVERYTHING, errno.ENODEV),
}
