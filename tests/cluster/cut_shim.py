"""One-way cuts between running processes of this machine: by a preloaded library.

What a process sends to a port, or to an address, vanishes, and it is not told: as when a router loses the
packets of one direction. What comes back arrives still, and others reach whoever is there.

Connections name the address of whoever made them where a process has one of its own on loopback
($NETWORK_SOURCE): so what is sent on them by whoever took them can be lost as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.preload import PreloadedLines

_SHIM = r"""
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Whether what this process sends there is lost. A cut is a line: PROCESS PORT ADDRESS; 0 and * are all. */
static int is_lost(int file) {
    char copy[MAPPED_BYTES + 1], there[INET_ADDRSTRLEN], address[64];
    struct sockaddr_in to;
    socklen_t length = sizeof to;
    if (!mapped || !mapped[0]) return 0;
    if (getpeername(file, (struct sockaddr *)&to, &length) || to.sin_family != AF_INET) return 0;
    if (!mapped_lines(copy)) return 0;
    inet_ntop(AF_INET, &to.sin_addr, there, sizeof there);
    for (char *line = copy; line; line = next_line(line)) {
        int process = 0, port = 0;
        if (sscanf(line, "%d %d %63s", &process, &port, address) == 3 && process == getpid()
            && (!port || port == ntohs(to.sin_port)) && (address[0] == '*' || !strcmp(address, there)))
            return 1;
    }
    return 0;
}

static ssize_t size_of(const struct iovec *parts, size_t count) {
    ssize_t size = 0;
    for (size_t each = 0; each < count; each++) size += parts[each].iov_len;
    return size;
}

int connect(int file, const struct sockaddr *to, socklen_t length) {
    REAL(connect);
    const char *source = getenv("NETWORK_SOURCE");
    const struct sockaddr_in *there = (const struct sockaddr_in *)to;
    if (source && to->sa_family == AF_INET && ntohl(there->sin_addr.s_addr) >> 24 == 127) {
        struct sockaddr_in own = {.sin_family = AF_INET};
        if (inet_pton(AF_INET, source, &own.sin_addr) == 1) bind(file, (struct sockaddr *)&own, sizeof own);
    }
    return real(file, to, length);
}

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


class Cuts(PreloadedLines):
    """Who does not reach whom, of the processes that were started with `environment`; for one thread."""

    def __init__(self, directory: Path) -> None:
        """Compiles the library there; skips the test where there is no compiler."""
        super().__init__(directory, "NETWORK_CUTS", _SHIM)

    @contextmanager
    def between(self, process: int, *ports: int) -> Iterator[None]:
        """While it lasts nothing that the process sends reaches whoever listens on these ports."""
        cuts = [f"{process} {port} *" for port in ports]
        for cut in cuts:
            self.add_line(cut)
        try:
            yield
        finally:
            for cut in cuts:
                self.remove_line(cut)

    def from_address(self, process: int, address: str) -> None:
        """From now on, until `clear`, nothing that the process sends reaches whoever is at this address."""
        self.add_line(f"{process} 0 {address}")


def network_cuts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Cuts:
    """For the processes that are started from now on; skips the test where there is no compiler."""
    cuts = Cuts(directory)
    cuts.preload(monkeypatch)
    return cuts
