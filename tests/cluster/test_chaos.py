"""A short run of `make chaos`: each kind of fault once, on real processes, while clients write and read.

In namespaces of its own where the machine allows it; what it does not allow is skipped with the reason.
"""

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.storage.config import CoordinatorFiles
from tests.chaos.faults import KINDS
from tests.chaos.members import Member, set_up
from tests.chaos.verdict import compare_states
from tests.cluster.programs import ROOT, Run, run_program

RUN_TIMEOUT_S = 300.0  # about 110 s on an idle machine; tests share theirs
SEED = 11

pytestmark = [pytest.mark.long, pytest.mark.timeout(RUN_TIMEOUT_S + 60)]


@pytest.fixture(scope="module")
def short_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    options = ["--once", "--seed", str(SEED), "--recovery-s-max", "0"]
    directory = tmp_path_factory.mktemp("chaos")
    return run_program("tests.chaos", *options, directory=directory, timeout_s=RUN_TIMEOUT_S)


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_writes_resume_after_fault(short_run: Run, name: str) -> None:
    if why_not := short_run.report["skipped"].get(name):
        pytest.skip(why_not)

    assert short_run.report["faults"][name] == 1
    assert min(short_run.report["resumed_s"][name]) >= 0, short_run.said


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_gaps_of_writes_and_reads_around_fault_are_told(short_run: Run, name: str) -> None:
    if why_not := short_run.report["skipped"].get(name):
        pytest.skip(why_not)

    ((writes_s, reads_s),) = short_run.report["gaps_s"][name]

    assert 0 < writes_s < RUN_TIMEOUT_S, short_run.said
    assert 0 < reads_s < RUN_TIMEOUT_S, short_run.said


def test_no_promise_is_broken(short_run: Run) -> None:
    assert short_run.report["violations"] == [], short_run.said
    assert short_run.code == 0, short_run.said


def test_clients_did_something_in_between(short_run: Run) -> None:
    outcomes = short_run.report["outcomes"]

    assert {"create ok", "update ok", "read ok", "list ok"} <= set(outcomes)
    assert {"store ok", "fetch ok", "remove ok"} <= set(outcomes)
    assert short_run.report["operations"] > 500


def test_contents_were_packed(short_run: Run) -> None:
    assert 0 < short_run.report["packed"] < short_run.report["contents"], short_run.said


def test_contents_turned_cold_and_the_disk_of_a_node_rotted(short_run: Run) -> None:
    assert short_run.report["cold"] > 0, short_run.said
    assert {"freeze", "rot"} <= set(short_run.report["cold_acts"]), short_run.said


def run_with_only(directory: Path, *commands: str, faults: str) -> Run:
    """Where no other commands are than these."""
    for name in commands:
        if found := shutil.which(name):
            (directory / name).symlink_to(found)
    return run_program(
        "tests.chaos",
        *("--once", "--faults", faults, "--recovery-s-max", "0", "--seed", str(SEED)),
        directory=directory,
        timeout_s=RUN_TIMEOUT_S,
        environment={"PATH": str(directory)},
    )


def test_machine_that_cannot_cut_connections_does_the_other_faults(tmp_path: Path) -> None:
    run = run_with_only(
        tmp_path,
        *("unshare", "nsenter", "ip", "mount", "umount", "sh", "sleep"),
        faults="kill_leader,partition,slow_link,slow_disk,clock",
    )

    assert set(run.report["skipped"]) == {"partition", "slow_link", "slow_disk", "clock"}
    assert run.report["faults"] == {"kill_leader": 1}
    assert run.code == 0, run.said


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler (Debian: apt install gcc)")
@pytest.mark.parametrize("namespaces", [(), ("unshare", "nsenter", "ip", "sh", "sleep")], ids=["no", "own"])
def test_machine_without_packet_filter_cuts_connections_all_the_same(
    tmp_path: Path, namespaces: tuple[str, ...]
) -> None:
    run = run_with_only(tmp_path, "cc", "as", "ld", *namespaces, faults="mute,partition")

    assert run.report["skipped"] == {}
    assert run.report["faults"] == {"mute": 1, "partition": 1}
    assert run.code == 0, run.said


@pytest.fixture
def stopped(tmp_path: Path) -> list[Member]:
    """Two members of one cluster that never ran."""
    members = [
        Member(name, "127.0.0.1", port, port + 1, tmp_path / name, tmp_path / "logs" / name)
        for name, port in (("c1", 7000), ("c2", 7002))
    ]
    set_up(members, None)
    return members


def test_equal_states_are_called_equal(stopped: list[Member]) -> None:
    assert compare_states(stopped) == []


def test_difference_between_states_is_shown(stopped: list[Member]) -> None:
    with contextlib.closing(sqlite3.connect(CoordinatorFiles(stopped[1].data).state)) as db:
        db.execute("UPDATE users SET generation = generation + 1")
        db.commit()

    (fault,) = compare_states(stopped)

    assert "c1 and of c2 differ" in fault
    assert "users" in fault


def test_unknown_fault_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--faults", "kill_leader,meteor"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode != 0
    assert "no such fault: meteor" in done.stderr
