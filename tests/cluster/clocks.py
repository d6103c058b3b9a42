"""The wall clock of processes that a test starts, moved: of all of them, or of one that runs."""

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.preload import Preloaded, compiled

_TABLE = "CLOCK_TABLE"  # the variable with the path of it
# A table: its version, then process, seconds and steady seconds of each that is moved, then zeros. All are 64
# bits.

# Moved by the seconds that the table in $CLOCK_TABLE has for this process or the one that started it, and by
# those in $CLOCK_SHIFT where it has none. CLOCK_BOOTTIME is moved by the steady seconds, as if the machine
# had slept for as long; CLOCK_MONOTONIC stays.
_SHIM = r"""
#include <stdint.h>
#include <sys/time.h>
#include <time.h>
static long shift(int steady) {
    static int64_t seen, seen_by, found[2];
    const char *text = getenv("CLOCK_SHIFT");
    const volatile int64_t *table = (const volatile int64_t *)mapped;
    int64_t own = getpid();
    if (!table || !table[0]) return text && !steady ? atol(text) : 0;
    if (seen != table[0] || seen_by != own) {
        int64_t version = table[0], shift_s = text ? atol(text) : 0, steady_s = 0, parent = getppid();
        for (int at = 1; at < 509 && table[at]; at += 3)
            if (table[at] == own || table[at] == parent) shift_s = table[at + 1], steady_s = table[at + 2];
        found[0] = shift_s, found[1] = steady_s, seen = version, seen_by = own;
    }
    return found[steady];
}
int clock_gettime(clockid_t clock, struct timespec *found) {
    REAL(clock_gettime);
    int failed = real(clock, found);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += shift(0);
    if (!failed && clock == CLOCK_BOOTTIME) found->tv_sec += shift(1);
    return failed;
}
int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


def library(directory: Path) -> Path:
    """Compiled; skips the test where there is no compiler."""
    return compiled(directory, _TABLE, _SHIM)


def table_of(version: int, shifts: Mapping[int, tuple[int, int]]) -> bytes:
    """What the file is to begin with, for seconds and steady seconds by process."""
    numbers = [number for pid, moved in shifts.items() for number in (pid, *moved)]
    return struct.pack(f"={len(numbers) + 2}q", version, *numbers, 0)


def set_clock(monkeypatch: pytest.MonkeyPatch, shim: Path, shift_s: int) -> None:
    """Of the processes that are started from now on."""
    monkeypatch.setenv("CLOCK_SHIFT", str(shift_s))
    monkeypatch.setenv("LD_PRELOAD", str(shim))


class Clocks(Preloaded):
    """Of processes that were started with `environment`, each by itself."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
        """For all that are started from now on, if the environment is handed in. Skips the test where there
        is no compiler.
        """
        super().__init__(directory, _TABLE, _SHIM)
        if monkeypatch is not None:
            self.preload(monkeypatch)
        self._shifts: dict[int, tuple[int, int]] = {}
        self._version = 0

    def move(self, pid: int, shift_s: int, *, steady_s: int = 0) -> None:
        """Move the clock of this process, and of those that it started, this far ahead from now on.

        `steady_s`: the steady clock as well: time has passed, which is no jump.
        """
        self._shifts = {each: shift for each, shift in self._shifts.items() if Path(f"/proc/{each}").exists()}
        self._shifts[pid] = (shift_s, steady_s)
        self._version += 1
        table = table_of(self._version, self._shifts)
        self.mapped[8 : len(table)] = table[8:]
        self.mapped[:8] = table[:8]  # what it vouches for is there
