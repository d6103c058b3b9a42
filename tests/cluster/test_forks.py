"""A fork of the loaded product is the command as it is: what it was given, what it says, how it ends."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.forks import Forked, can_fork
from tests.cluster.harness import FILESTORE

PIPE = subprocess.PIPE
COMMANDS = (["--version"], ["ls", "--nothing"], ["ls", "--url", "https://127.0.0.1:1"], ["ls", "--help"])


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_fork_says_and_answers_what_a_new_process_does(arguments: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"FILESTORE_CA": str(tmp_path / "none.pem"), "XDG_STATE_HOME": str(tmp_path)}
    forked, new = (
        process_of([FILESTORE, *arguments], env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        for process_of in (Forked, subprocess.Popen)
    )
    with forked, new:
        assert forked.communicate(b"", 60) == new.communicate(b"", 60)
    assert forked.returncode == new.returncode


def test_fork_that_is_killed_says_by_what_and_holds_nothing_of_another() -> None:
    reader, full = os.pipe2(os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while os.write(full, bytes(4096)):
            pass
    os.set_blocking(full, True)
    try:
        waits = Forked([FILESTORE, "--version"], env=os.environ, stdin=PIPE, stdout=full)  # to write
        with waits, Forked([FILESTORE, "--version"], env=os.environ, stdin=PIPE, stdout=PIPE) as other:
            output, _ = other.communicate(b"", 60)  # to the end, so nobody else holds the pipe
            assert output.startswith(b"filestore")
            waits.kill()
        assert waits.returncode == -signal.SIGKILL
    finally:
        os.close(reader)
        os.close(full)


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONMALLOC", "LC_ALL", "TZ"])
def test_what_is_read_at_a_start_is_no_fork(name: str) -> None:
    assert can_fork(os.environ)
    assert not can_fork(os.environ | {name: "other"})
