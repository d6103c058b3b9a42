"""Records what a process does to a directory: every write with its bytes, every sync, every change of a name.

By a preloaded library, as SQLite calls the system by itself. The process runs one of the acts of
`tests.unit.power_acts`, and makes notes of what it was promised. `tests.unit.disk_replay` makes of the record
what a power cut may leave. Shared memory is not recorded: SQLite begins its index of the WAL anew.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster.preload import Preloaded

ROOT: Final = Path(__file__).resolve().parents[2]
ACT_S_MAX: Final = 100
_NAME: Final = "DISK_RECORD"
_HEAD: Final = struct.Struct("<cxxxIQQQ")  # call, length of its data, inode, offset or size, time of change

_SHIM = r"""
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>

static char root[PATH_MAX];
static int trace = -1, is_deaf;
static int calls_left; /* the process ends with the last; 0 for no end */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static int is_recording(void) {
    if (trace >= 0) return 1;
    char copy[MAPPED_BYTES + 1];
    if (!mapped_lines(copy)) return 0;
    char *path = strchr(copy, '\n'), *end = path ? strchr(path + 1, '\n') : NULL;
    if (!end) abort();
    *path++ = 0; *end = 0;
    is_deaf = end[1] == 'd';
    strcpy(root, copy);
    trace = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (trace < 0) abort();
    return 1;
}

static uint64_t changed; /* when the file was changed that `inode_of` was asked of last, in ns */

static void put(char call, uint64_t inode, uint64_t number, const void *data, uint32_t length) {
    struct { char call, none[3]; uint32_t length; uint64_t inode, number, changed; } head =
        {call, {0}, length, inode, number, changed};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, length}};
    static ssize_t (*real)(int, const struct iovec *, int);
    int before = errno;
    if (!real) real = dlsym(RTLD_NEXT, "writev");
    if (real(trace, parts, 2) != (ssize_t)(sizeof head + length)) abort();
    errno = before;
    if (call != 'N' && calls_left && --calls_left == 0) _exit(9);
}

void disk_record_die_after(int calls) { calls_left = calls; }

/* What the process says of itself. */
void disk_record_note(const char *text, int length) {
    if (!is_recording()) return;
    pthread_mutex_lock(&lock);
    put('N', 0, 0, text, length);
    pthread_mutex_unlock(&lock);
}

static int path_at(int at, const char *name, char *path) {
    char link[64];
    ssize_t length = 0;
    if (name && name[0] == '/') { snprintf(path, PATH_MAX, "%s", name); return 1; }
    if (at == AT_FDCWD) { if (!getcwd(path, PATH_MAX)) return 0; length = strlen(path); }
    else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        length = readlink(link, path, PATH_MAX - 1);
        if (length < 0) length = 0;
        path[length] = 0;
    }
    if (name) snprintf(path + length, PATH_MAX - length, "/%s", name);
    return 1;
}

/* Whether it lies in the directory that is watched; `path` becomes the rest of its path. */
static int is_watched(int at, const char *name, char *path) {
    if (!is_recording() || !path_at(at, name, path)) return 0;
    size_t length = strlen(root);
    if (strncmp(path, root, length) || (path[length] && path[length] != '/')) return 0;
    memmove(path, path + length, strlen(path + length) + 1);
    return 1;
}

static uint64_t inode_of(int file) {
    struct stat found;
    if (fstat(file, &found)) abort();
    changed = found.st_mtim.tv_sec * 1000000000ull + found.st_mtim.tv_nsec;
    return found.st_ino;
}

static uint64_t size_of(int file) {
    struct stat found;
    if (fstat(file, &found)) abort();
    return found.st_size;
}

static int is_directory(int file) {
    struct stat found;
    return !fstat(file, &found) && S_ISDIR(found.st_mode);
}

#define WATCHED(at, name) char path[PATH_MAX]; int watched = is_watched(at, name, path); \
    if (watched) pthread_mutex_lock(&lock)
#define DONE(condition, call, inode, number, data, length) \
    if (watched) { if (condition) put(call, inode, number, data, length); pthread_mutex_unlock(&lock); } \
    return done
#define MODE() int mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); \
    mode = va_arg(rest, int); va_end(rest); }
#define OPENED(at, name, call) \
    if (!(flags & (O_CREAT | O_TRUNC))) return call; \
    WATCHED(at, name); \
    int is_cut, is_new = watched && faccessat(at, name, F_OK, AT_SYMLINK_NOFOLLOW); \
    int done = call; \
    is_cut = !is_new && (flags & O_TRUNC); \
    DONE(done >= 0 && (is_new || is_cut), is_new ? 'C' : 'T', inode_of(done), 0, path, strlen(path))
#define OPEN(name) int name(const char *at, int flags, ...) { MODE(); REAL(name); \
    OPENED(AT_FDCWD, at, real(at, flags, mode)); }
#define OPENAT(name) int name(int directory, const char *at, int flags, ...) { MODE(); REAL(name); \
    OPENED(directory, at, real(directory, at, flags, mode)); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

ssize_t write(int file, const void *bytes, size_t count) {
    REAL(write); WATCHED(file, NULL);
    ssize_t done = real(file, bytes, count);
    DONE(done > 0, 'W', inode_of(file), lseek(file, 0, SEEK_CUR) - done, bytes, done); }
#define PWRITE(name, offset_t) ssize_t name(int file, const void *bytes, size_t count, offset_t at) { \
    REAL(name); WATCHED(file, NULL); \
    ssize_t done = real(file, bytes, count, at); DONE(done > 0, 'W', inode_of(file), at, bytes, done); }
PWRITE(pwrite, off_t) PWRITE(pwrite64, off64_t)
#define SIZED(name, offset_t) int name(int file, offset_t size) { REAL(name); WATCHED(file, NULL); \
    int done = real(file, size); DONE(!done, 'T', inode_of(file), size, NULL, 0); }
SIZED(ftruncate, off_t) SIZED(ftruncate64, off64_t)
#define ALLOCATE(name, offset_t) int name(int file, offset_t at, offset_t size) { REAL(name); \
    WATCHED(file, NULL); int done = real(file, at, size); \
    DONE(!done, 'A', inode_of(file), size_of(file), NULL, 0); }
ALLOCATE(posix_fallocate, off_t) ALLOCATE(posix_fallocate64, off64_t)
int fsync(int file) { REAL(fsync); WATCHED(file, NULL);
    int done = real(file);
    DONE(!done, is_directory(file) ? 'Y' : 'S', inode_of(file), 0, path, strlen(path)); }
int fdatasync(int file) { REAL(fdatasync); WATCHED(file, NULL);
    int is_names = watched && is_directory(file), done = is_names && is_deaf ? (errno = EIO, -1) : real(file);
    DONE(!done, is_names ? 'Y' : 'D', inode_of(file), 0, path, strlen(path)); }

/* Two paths, with a zero between them. */
struct names { int from_at; const char *from; int to_at; const char *to; int flags; };
static int moved(char call, struct names *n, int (*act)(struct names *)) {
    char both[2 * PATH_MAX], path[PATH_MAX];
    int is_from = is_watched(n->from_at, n->from, both), is_to = is_watched(n->to_at, n->to, path), done;
    if (is_from != is_to) abort();
    if (!is_from) return act(n);
    pthread_mutex_lock(&lock);
    done = act(n);
    size_t length = strlen(both) + 1;
    strcpy(both + length, path);
    if (!done) put(call, 0, 0, both, length + strlen(path));
    pthread_mutex_unlock(&lock);
    return done;
}
#define MOVE(name, call, TAKES, USES, ...) \
    static int name##_act(struct names *n) { REAL(name); return real USES; } \
    int name TAKES { struct names n = {__VA_ARGS__}; return moved(call, &n, name##_act); }
MOVE(rename, 'R', (const char *from, const char *to), (n->from, n->to), AT_FDCWD, from, AT_FDCWD, to, 0)
MOVE(renameat, 'R', (int from_at, const char *from, int to_at, const char *to),
    (n->from_at, n->from, n->to_at, n->to), from_at, from, to_at, to, 0)
MOVE(link, 'L', (const char *from, const char *to), (n->from, n->to), AT_FDCWD, from, AT_FDCWD, to, 0)
MOVE(linkat, 'L', (int from_at, const char *from, int to_at, const char *to, int flags),
    (n->from_at, n->from, n->to_at, n->to, n->flags), from_at, from, to_at, to, flags)

int unlink(const char *name) { REAL(unlink); WATCHED(AT_FDCWD, name);
    int done = real(name); DONE(!done, 'U', 0, 0, path, strlen(path)); }
int unlinkat(int at, const char *name, int flags) { REAL(unlinkat); WATCHED(at, name);
    int done = real(at, name, flags);
    DONE(!done, flags & AT_REMOVEDIR ? 'X' : 'U', 0, 0, path, strlen(path)); }
int rmdir(const char *name) { REAL(rmdir); WATCHED(AT_FDCWD, name);
    int done = real(name); DONE(!done, 'X', 0, 0, path, strlen(path)); }
int mkdir(const char *name, mode_t mode) { REAL(mkdir); WATCHED(AT_FDCWD, name);
    int done = real(name, mode); DONE(!done, 'M', 0, 0, path, strlen(path)); }
int mkdirat(int at, const char *name, mode_t mode) { REAL(mkdirat); WATCHED(at, name);
    int done = real(at, name, mode); DONE(!done, 'M', 0, 0, path, strlen(path)); }

/* Calls that nobody makes there: who begins to has to have them recorded. */
#define NEVER(file) char path[PATH_MAX]; if (is_watched(file, NULL, path)) abort()
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev); NEVER(file); return real(file, parts, count); }
ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
    REAL(pwritev); NEVER(file); return real(file, parts, count, at); }
ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t at) {
    REAL(pwritev64); NEVER(file); return real(file, parts, count, at); }
ssize_t sendfile(int to, int from, off_t *at, size_t count) {
    REAL(sendfile); NEVER(to); return real(to, from, at, count); }
ssize_t sendfile64(int to, int from, off64_t *at, size_t count) {
    REAL(sendfile64); NEVER(to); return real(to, from, at, count); }
ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t count, unsigned flags) {
    REAL(copy_file_range); NEVER(to); return real(from, from_at, to, to_at, count, flags); }
int fallocate(int file, int mode, off_t at, off_t size) {
    REAL(fallocate); NEVER(file); return real(file, mode, at, size); }
"""


class Call(NamedTuple):
    """One call. `data`: what was written, or the path below the directory, or two with a zero between."""

    kind: str
    inode: int
    number: int
    changed_ns: int
    data: bytes

    @property
    def paths(self) -> list[str]:
        return [path.decode() for path in self.data.split(b"\0")]


@dataclass(frozen=True, slots=True)
class Record:
    """What the directory held, by path: None for a directory, and all calls since."""

    files: dict[str, bytes | None]
    facts: dict[str, os.stat_result]
    calls: list[Call]

    def calls_until(self, kind: str, path: str) -> int:
        """How many calls there are up to the first of this kind that gives a path, notes not counted."""
        count = 0
        for call in self.calls:
            count += call.kind != "N"
            if call.kind == kind and call.paths[-1] == path:
                return count
        raise AssertionError(f"no {kind} of {path}")


class Recorder(Preloaded):
    """Runs acts in processes that have the library."""

    def __init__(self, directory: Path) -> None:
        """Compiles it there; skips the test where there is no compiler."""
        super().__init__(directory, _NAME, _SHIM)
        self._trace = directory / "trace"

    def record(self, act: str, root: Path, *arguments: str | Path, is_deaf: bool = False) -> Record:
        """Run one act of `power_acts` on the files in `root`, and what it did. All of them are durable now.

        `is_deaf`: the syncs of directories that SQLite makes by itself fail, which it tells nobody.
        """
        root = root.resolve()
        paths = sorted(root.rglob("*"))
        files = {f"/{path.relative_to(root)}": None if path.is_dir() else path.read_bytes() for path in paths}
        facts = {f"/{path.relative_to(root)}": path.stat() for path in paths}
        self._trace.unlink(missing_ok=True)
        line = f"{root}\n{self._trace}\n{'deaf' if is_deaf else ''}\n".encode()
        self.mapped[: len(line) + 1] = line + b"\0"
        done = subprocess.run(
            [sys.executable, "-m", "tests.unit.power_acts", act, str(root), *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=ACT_S_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{act} ended with {done.returncode}: {done.stderr[-3000:]}"
        return Record(files, facts, list(_calls(self._trace.read_bytes())))


def _calls(trace: bytes) -> Iterator[Call]:
    at = 0
    while at < len(trace):
        kind, length, inode, number, changed_ns = _HEAD.unpack_from(trace, at)
        at += _HEAD.size
        yield Call(kind.decode(), inode, number, changed_ns, trace[at : at + length])
        at += length
