"""Which start of a directory a node is, and which processes it knows to have ended."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metadata.rpc.instances import parse_instance
from node.base.instance import ENDED_MAX, NOTE_BYTES_MAX, Start, begin


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    """The descriptor of a file as a node locks it."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def started(tmp_path: Path) -> Callable[[], Start]:
    """One more process of the same node, after the one before has ended."""

    def start() -> Start:
        with locked(tmp_path) as lock:
            return begin(tmp_path / "instance.json", "n1", lock)

    return start


def test_next_process_knows_that_the_one_before_has_ended(started: Callable[[], Start]) -> None:
    first, second = started(), started()
    assert second.ended_predecessor(first.instance) == parse_instance(first.instance).process
    assert first.ended_predecessor(second.instance) == ""
    assert second.ended_predecessor("") == ""
    assert second.ended_predecessor(second.instance) == ""


def test_process_that_ended_before_it_spoke_is_no_gap(started: Callable[[], Start]) -> None:
    spoke = started()
    started()  # it told nobody that it speaks
    assert started().ended_predecessor(spoke.instance) == parse_instance(spoke.instance).process


def test_note_of_a_node_that_is_started_often_stays_small(
    started: Callable[[], Start], tmp_path: Path
) -> None:
    starts = [started() for _ in range(ENDED_MAX + 3)]
    assert (tmp_path / "lock").stat().st_size < NOTE_BYTES_MAX
    assert starts[-1].ended_predecessor(starts[-2].instance)
    assert starts[-1].ended_predecessor(starts[-1 - ENDED_MAX].instance)
    assert not starts[-1].ended_predecessor(starts[0].instance)


def test_file_that_lies_elsewhere_tells_nothing(started: Callable[[], Start], tmp_path: Path) -> None:
    first = started()
    shutil.copy2(tmp_path / "lock", tmp_path / "copied")
    (tmp_path / "copied").rename(tmp_path / "lock")
    assert not started().ended_predecessor(first.instance)


def test_note_that_is_no_text_tells_nothing(started: Callable[[], Start], tmp_path: Path) -> None:
    first = started()
    note = bytearray((tmp_path / "lock").read_bytes())
    note[note.index(b"place") + 10] ^= 0x80  # one bit, and it is no UTF-8 any more
    (tmp_path / "lock").write_bytes(note)
    second = started()
    assert not second.ended_predecessor(first.instance)
    assert started().ended_predecessor(second.instance)


@pytest.mark.parametrize("failing", ["pwrite", "ftruncate"])
def test_disk_that_refuses_the_note_leaves_what_is_known(
    started: Callable[[], Start], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    first = started()
    with monkeypatch.context() as changed:
        changed.setattr(os, failing, refuse)
        assert started().ended_predecessor(first.instance)
    assert started().ended_predecessor(first.instance)
