"""One-way cuts between running processes of this machine: by a preloaded library.

What a process sends on its connections to a port vanishes, and it is not told: as when a router loses the
packets of one direction. What comes back on them arrives still, and others reach the port. A cut holds at
once, for all threads; a test is skipped where nothing can be compiled.
"""

import mmap
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

CUTS_BYTES: Final = 4096

_SHIM = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define CUTS_BYTES 4096
static const volatile char *cuts;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("NETWORK_CUTS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, CUTS_BYTES, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) cuts = mapped;
    close(file);
}

/* Whether what this process sends there is lost. A cut is a line: PROCESS PORT. */
static int is_lost(int file) {
    char copy[CUTS_BYTES + 1];
    struct sockaddr_in to;
    socklen_t length = sizeof to;
    if (!cuts || !cuts[0]) return 0;
    if (getpeername(file, (struct sockaddr *)&to, &length) || to.sin_family != AF_INET) return 0;
    memcpy(copy, (const char *)cuts, CUTS_BYTES);
    copy[CUTS_BYTES] = 0;
    for (char *line = copy; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        int process = 0, port = 0;
        if (sscanf(line, "%d %d", &process, &port) == 2 && process == getpid() && port == ntohs(to.sin_port))
            return 1;
    }
    return 0;
}

static ssize_t size_of(const struct iovec *parts, size_t count) {
    ssize_t size = 0;
    for (size_t each = 0; each < count; each++) size += parts[each].iov_len;
    return size;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
ssize_t write(int file, const void *bytes, size_t size) {
    REAL(write); return is_lost(file) ? (ssize_t)size : real(file, bytes, size); }
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev); return is_lost(file) ? size_of(parts, count) : real(file, parts, count); }
ssize_t send(int file, const void *bytes, size_t size, int flags) {
    REAL(send); return is_lost(file) ? (ssize_t)size : real(file, bytes, size, flags); }
ssize_t sendto(int file, const void *bytes, size_t size, int flags, const struct sockaddr *to, socklen_t of) {
    REAL(sendto); return is_lost(file) ? (ssize_t)size : real(file, bytes, size, flags, to, of); }
ssize_t sendmsg(int file, const struct msghdr *message, int flags) {
    REAL(sendmsg);
    return is_lost(file) ? size_of(message->msg_iov, message->msg_iovlen) : real(file, message, flags); }
"""


class Cuts:
    """Who does not reach whom, of the processes that were started with `environment`; for one thread."""

    def __init__(self, directory: Path) -> None:
        """Compiles the library there. Raises OSError, CalledProcessError."""
        self.library, self._path = directory / "cut_shim.so", directory / "cuts"
        source = directory / "cut_shim.c"
        source.write_text(_SHIM)
        command = ["cc", "-shared", "-fPIC", "-O1", "-w", "-o", str(self.library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        self._path.write_bytes(bytes(CUTS_BYTES))
        with self._path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), CUTS_BYTES)
        self._cuts: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """Of the processes."""
        return {"LD_PRELOAD": str(self.library), "NETWORK_CUTS": str(self._path)}

    @contextmanager
    def between(self, process: int, *ports: int) -> Iterator[None]:
        """While it lasts nothing that the process sends reaches whoever listens on these ports."""
        cuts = [f"{process} {port}\n" for port in ports]
        self._cuts += cuts
        self._write()
        try:
            yield
        finally:
            for cut in cuts:
                self._cuts.remove(cut)
            self._write()

    def _write(self) -> None:
        raw = "".join(self._cuts).encode()
        assert len(raw) < CUTS_BYTES
        self._mapped[:1] = b"\0"  # nobody reads half of it
        self._mapped[1:] = raw[1:].ljust(CUTS_BYTES - 1, b"\0")
        self._mapped[:1] = raw[:1] or b"\0"


def network_cuts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Cuts:
    """For the processes that are started from now on; skips the test where there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (Debian: apt install gcc)")
    cuts = Cuts(directory)
    for name, value in cuts.environment.items():
        monkeypatch.setenv(name, value)
    return cuts
