"""Whoever examines a copy of the state in a process of its own ends it with itself, however that ends."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator.storage import pinned_state
from coordinator.storage.pinned_state import examine
from coordinator.storage.state_backup import copy_database
from deploy.processes import wait_until
from runtime.stopping import Stop, WorkStopped
from tests.unit.state import State

WAIT_S = 20.0
EXAMINE = """
import sys
from pathlib import Path
from coordinator.storage import pinned_state
pinned_state.EXAMINED_BESIDE_BYTES_MIN = 0
pinned_state.examine(Path(sys.argv[1]))
"""


@pytest.fixture
def endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What is opened for reading as long as nobody writes there: an examination of it does not end."""
    monkeypatch.setattr(pinned_state, "EXAMINED_BESIDE_BYTES_MIN", 0)
    os.mkfifo(path := tmp_path / "endless")
    yield path
    with os.fdopen(os.open(path, os.O_RDWR | os.O_NONBLOCK), "wb"):  # lets go of whoever reads still
        pass


def examining(path: Path) -> list[int]:
    """The processes that examine this."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = each.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"coordinator.storage.pinned_state" in arguments and os.fsencode(path) in arguments:
            found.append(int(each.parent.name))
    return found


def test_examination_ends_when_it_is_stopped(endless: Path) -> None:
    stop = Stop()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(examine, endless, stop)
        wait_until(lambda: bool(examining(endless)), what="an examination", timeout_s=WAIT_S)
        stop.set()
        with pytest.raises(WorkStopped):
            done.result(WAIT_S)
    assert examining(endless) == []


def test_examination_is_done_here_where_a_page_that_is_not_given_ends_its_process(
    endless: Path, tmp_path: Path
) -> None:
    state, copy = State(tmp_path / "state.sqlite"), tmp_path / "copy.sqlite"
    copy_database(state.path, copy)
    state.store.close()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(examine, endless)
        wait_until(lambda: bool(examining(endless)), what="an examination", timeout_s=WAIT_S)
        shutil.copy(copy, tmp_path / "sound")
        (tmp_path / "sound").replace(endless)
        (child,) = examining(endless)
        os.kill(child, signal.SIGBUS)
        assert done.result(WAIT_S) == examine(copy)
    assert not done.result().flaw


def test_examination_ends_with_a_process_that_is_killed(endless: Path) -> None:
    asking = subprocess.Popen([sys.executable, "-c", EXAMINE, str(endless)])
    try:
        wait_until(lambda: bool(examining(endless)), what="an examination", timeout_s=WAIT_S)
    finally:
        asking.kill()
        asking.wait()
    wait_until(lambda: not examining(endless), what="the end of the examination", timeout_s=WAIT_S)
