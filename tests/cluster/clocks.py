"""The wall clock of processes that a test starts, moved."""

import shutil
import subprocess
from pathlib import Path

import pytest

# Moved by the seconds in $CLOCK_SHIFT; monotonic clocks stay.
_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift(void) { const char *text = getenv("CLOCK_SHIFT"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t clock, struct timespec *found) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, found);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) found->tv_sec += shift();
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
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (Debian: apt install gcc)")
    source, made = directory / "shim.c", directory / "shim.so"
    source.write_text(_SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


def set_clock(monkeypatch: pytest.MonkeyPatch, shim: Path, shift_s: int) -> None:
    """Of the processes that are started from now on."""
    monkeypatch.setenv("CLOCK_SHIFT", str(shift_s))
    monkeypatch.setenv("LD_PRELOAD", str(shim))
