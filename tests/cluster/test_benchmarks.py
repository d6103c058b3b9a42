"""Every benchmark runs, with small numbers: they mean nothing then, but it does not break unseen.

The default suite imports each, and `make long` runs it.

A new module of `bench` is found by itself: it fails here until NUMBERS says how it is made short, or RUN_BY
which benchmark starts it. Parts whose yardstick is not installed (etcd, nginx, wrk) are left out by the
benchmarks themselves; what they say of it is printed.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

BENCH: Final = Path(__file__).parents[2] / "bench"
TIMEOUT_S: Final = 240.0
MIB: Final = 1 << 20
MAIN: Final = 'if __name__ == "__main__":'
MODULES: Final = sorted(path.stem for path in BENCH.glob("*.py") if path.stem != "__init__")
PROGRAMS: Final = [name for name in MODULES if MAIN in (BENCH / f"{name}.py").read_text("utf-8")]

# Those that need Chromium, or servers of GNS3, which other suites install: here they are imported only.
ELSEWHERE: Final = frozenset({"browser", "gns3"})
# Processes that a benchmark starts, and that do nothing without it.
RUN_BY: Final = {
    "bare": "uploads",
    "client_transfers": "client",
    "etcd_load": "metadata",
    "load": "metadata",
    "reader": "heal",
    "scale_load": "scale",
    "receiver": "remote",
    "sender": "uploads",
    "threads": "uploads",
    "traced": "hops",
}
# What the environment sets, and constants of modules, which are set before the benchmark begins.
_YARDSTICK: Final = {
    "bench.yardstick.APPENDS": 20,
    "bench.yardstick.BULK_BYTES": 4 * MIB,
    "bench.yardstick.INTERPRETER_STEPS": 1000,
}
NUMBERS: Final[Mapping[str, Mapping[str, object]]] = {
    "api": {
        "API_FILES": 700,
        "bench.api.FEW": 600,
        "bench.api.RUNS": 1,
        "bench.api.SECONDS": 0.1,
    },
    "client": {"CLIENT_MIB": 8, "bench.client.RUNS": 1},
    "datapath": {
        "DATAPATH_RUNS": 1,
        "REMOTE_MIB": 4,
        "UPLOADS_RUNS": 1,
        "UPLOADS_BYTES": 8 * MIB,
        "bench.remote.RUNS": 1,
        "bench.replicated.REST_S": 0.1,
        "bench.datapath_get.FILE_BYTES": 8 * MIB,
        "bench.datapath_get.RANGES": 16,
        "bench.datapath_get.SMALL_SECONDS": 1,
        "bench.datapath_memory.FILE_BYTES": 8 * MIB,
        "bench.datapath_memory.SLOW_CLIENTS": 4,
        "bench.datapath_memory.SLOW_SECONDS": 0.5,
        "bench.datapath_memory.IDLE_PLAIN": 50,
        "bench.datapath_memory.IDLE_TLS": 20,
        "bench.datapath_memory.ROUNDS": 2,
    },
    "elections": {"ELECTION_RUNS": 1, "bench.elections.SETTLED_S": 0.1},
    "flat": {"FLAT_COMMANDS": 500},
    "heal": {"HEAL_MIB": 4, "HEAL_RUNS": 1, "HEAL_FILES": "1,4", "bench.heal.QUIET_S": 1.0},
    "hops": {"HOPS_REQUESTS": 5, "bench.hops.WARM_UP": 1, "bench.hops.PINGS": 20, **_YARDSTICK},
    "idle": {"IDLE_S": 1, "bench.idle.SETTLING_S": 0.1},
    "metadata": {"RUNS": 1, "SECONDS": 0.2, "LOADERS": 1, "bench.metadata.FILES": 100, **_YARDSTICK},
    "remote": {"REMOTE_MIB": 4, "bench.remote.RUNS": 1},
    "replicated": {"UPLOADS_RUNS": 1, "UPLOADS_BYTES": 8 * MIB, "bench.replicated.REST_S": 0.1},
    "scale": {
        "SCALE_FILES": 3000,
        "SCALE_SMALL": 1000,
        "SCALE_COORDINATORS": 1,
        "SCALE_RUNS": 1,
        "SCALE_COUNT": 40,
    },
    "smallfiles": {
        "SMALLFILES_FILES": 30,
        "SMALLFILES_CLIENTS": 4,
        "bench.smallfiles.SAMPLED": 3,
        **_YARDSTICK,
    },
    "smoke": {
        "bench.smoke.RUNS": 1,
        "bench.smoke.CREATE_SECONDS": 0.2,
        "bench.smoke.CLIENTS": 4,
        "bench.smoke.FILE_BYTES": MIB,
        **_YARDSTICK,
    },
    "uploads": {"UPLOADS_RUNS": 1, "UPLOADS_BYTES": 8 * MIB},
    "workers": {"bench.workers.RUNS": 1, "bench.workers.RUN_S": 0.2},
}
PROGRAM: Final = """
import importlib, json, sys
for path, value in json.loads(sys.argv[2]).items():
    owner, _, name = path.rpartition(".")
    module = importlib.import_module(owner)
    assert hasattr(module, name), path
    setattr(module, name, value)
importlib.import_module(f"bench.{sys.argv[1]}").main()
"""


def run(name: str) -> "subprocess.CompletedProcess[str]":
    """The benchmark as `make bench` runs it, but for its numbers."""
    numbers = NUMBERS[name]
    environment = {each: str(value) for each, value in numbers.items() if "." not in each}
    constants = {each: value for each, value in numbers.items() if "." in each}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, name, json.dumps(constants)],
        cwd=BENCH.parent,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("name", MODULES)
def test_module_of_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"bench.{name}")


@pytest.mark.parametrize("name", sorted(RUN_BY))
def test_process_of_a_benchmark_is_started_by_one_that_runs(name: str) -> None:
    assert name in PROGRAMS
    assert RUN_BY[name] in NUMBERS


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S + 10)
@pytest.mark.parametrize("name", [each for each in PROGRAMS if each not in RUN_BY and each not in ELSEWHERE])
def test_benchmark_runs_with_small_numbers(name: str) -> None:
    assert name in NUMBERS, "say in NUMBERS how it is made short, or in RUN_BY who starts it"
    done = run(name)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = done.stdout.splitlines()
    print("\n".join(line for line in lines if "skipped" in line or "absent" in line))
    assert json.loads(lines[-1])["bench"] == name


@pytest.mark.parametrize("name", ["scale", "smoke"])
def test_help_of_a_benchmark_runs_nothing(name: str) -> None:
    command = [sys.executable, "-m", f"bench.{name}", "--help"]
    done = subprocess.run(command, cwd=BENCH.parent, capture_output=True, text=True, timeout=30, check=True)
    module = importlib.import_module(f"bench.{name}")
    assert done.stdout.strip() == (module.__doc__ or "").strip()
