"""A cluster that is switched off until all of its certificates have expired, and switched on again."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.harness import run_filestore
from tests.cluster.test_development import development, environment

DAYS = 10  # of which a certificate lives for seven
CONTENT = os.urandom(3_000_000)
# The wall clock of whoever loads it, moved by the seconds in $CLOCK_SHIFT; other clocks stay.
SHIM = r"""
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


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (Debian: apt install gcc)")
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def test_cluster_that_was_off_for_longer_than_its_certificates_live_comes_back_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shim: Path
) -> None:
    data, content = tmp_path / "dev", tmp_path / "content"
    content.write_bytes(CONTENT)
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("CLOCK_SHIFT", str(-DAYS * 24 * 3600))
    with development(data):
        first = json.loads((data / "cluster.json").read_text())
        stored = run_filestore(["put", str(content)], environment(first, tmp_path))
        assert stored.returncode == 0, stored.stderr
    monkeypatch.delenv("LD_PRELOAD")
    with development(data):  # healthy, or it would have ended
        second = json.loads((data / "cluster.json").read_text())
        got = run_filestore(["get", stored.stdout.decode().strip(), "-o", "-"], environment(second, tmp_path))
        assert got.stdout == CONTENT
        more = run_filestore(["put", str(content)], environment(second, tmp_path))
        assert more.returncode == 0, more.stderr
