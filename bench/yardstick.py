"""What this machine can do at best, measured in the same run: fdatasync, write and fsync, sha256, Python.

A number of a benchmark means little without these: on a shared machine only ratios can be compared
between days.
"""

import hashlib
import os
import time
from pathlib import Path

BLOCK_BYTES = 4096
APPENDS = 500
BULK_BYTES = 256 << 20
INTERPRETER_STEPS = 2_000_000


def fdatasync_appends_per_s(directory: Path) -> float:
    """Appends of 4 KiB, each followed by fdatasync: the ceiling of one client's durable writes."""
    block = os.urandom(BLOCK_BYTES)
    path = directory / "yardstick.log"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        start = time.perf_counter()
        for _ in range(APPENDS):
            os.write(descriptor, block)
            os.fdatasync(descriptor)
        return APPENDS / (time.perf_counter() - start)
    finally:
        os.close(descriptor)
        path.unlink()


def write_bytes_per_s(directory: Path) -> float:
    """A file of 256 MiB in pieces of 1 MiB, then fsync."""
    block = os.urandom(1 << 20)
    path = directory / "yardstick.bulk"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        start = time.perf_counter()
        for _ in range(BULK_BYTES >> 20):
            os.write(descriptor, block)
        os.fsync(descriptor)
        return BULK_BYTES / (time.perf_counter() - start)
    finally:
        os.close(descriptor)
        path.unlink()


def sha256_bytes_per_s() -> float:
    """One core, pieces of 1 MiB."""
    block = os.urandom(1 << 20)
    digest = hashlib.sha256()
    start = time.perf_counter()
    for _ in range(BULK_BYTES >> 20):
        digest.update(block)
    return BULK_BYTES / (time.perf_counter() - start)


def interpreter_steps_per_s() -> float:
    """Turns of a loop in Python that adds, looks up and stores: how fast one core runs such code today."""
    counts = dict.fromkeys(range(256), 0)
    start = time.perf_counter()
    for step in range(INTERPRETER_STEPS):
        counts[step & 255] += step
    return INTERPRETER_STEPS / (time.perf_counter() - start)
