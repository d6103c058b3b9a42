"""What the disk is told to begin with while an upload comes, before a sync asks for it."""

import ctypes
import errno
import os
import re
from pathlib import Path

import pytest

from ca import errors
from node.diskio import durable, writeback
from node.staging.upload_file import UploadFile
from tests.unit.upload_machine import CONTENT, REFUSALS, SHA256, UUID, Machine, assert_goes_on, assert_stored

PIECE = 10_000


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that little content reaches."""
    monkeypatch.setattr(writeback, "HEAD_START_BYTES", 20_000)
    monkeypatch.setattr(writeback, "BEHIND_BYTES", 100_000)
    monkeypatch.setattr(writeback, "END_BYTES", 50_000)


def append(upload: UploadFile, start: int, stop: int) -> None:
    for at in range(start, stop, PIECE):
        upload.append(CONTENT[at : min(at + PIECE, stop)])


def steps(start: int, stop: int) -> list[tuple[int, int]]:
    return [(at, 20_000) for at in range(start, stop, 20_000)]


def test_disk_begins_with_the_first_and_the_last_of_a_long_body(machine: Machine) -> None:
    with machine.uploads.open(UUID, len(CONTENT)) as upload:
        append(upload, 0, 240_000)
        assert machine.faults.begun == steps(0, 100_000)
        append(upload, 240_000, 300_000)
        assert machine.faults.begun[5:] == [(100_000, 150_000), *steps(250_000, 290_000)]
        upload.finish(SHA256)
    assert_stored(machine, CONTENT)


def test_disk_that_is_not_behind_begins_with_every_piece(machine: Machine) -> None:
    """The end is not known here."""
    with machine.uploads.open(UUID, None) as upload:
        append(upload, 0, 90_000)
        upload.sync()
        append(upload, 90_000, 180_000)
        assert machine.faults.begun == [*steps(0, 80_000), *steps(90_000, 170_000)]


def test_disk_begins_again_with_what_comes_in_place_of_dropped_bytes(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        append(upload, 0, 60_000)
        upload.rollback_to(30_000)
        append(upload, 30_000, 70_000)
        assert machine.faults.begun[3:] == steps(30_000, 70_000)


@REFUSALS
def test_bytes_that_the_disk_refuses_early_are_told_and_dropped(
    machine: Machine, error_number: int, told: type[errors.FilestoreError]
) -> None:
    with machine.uploads.open(UUID, None) as upload:
        append(upload, 0, 50_000)
        upload.sync()
        machine.faults.beginning = error_number
        with pytest.raises(told):
            upload.append(CONTENT[50_000:90_000])
        machine.faults.beginning = None
        assert upload.offset == upload.durable_offset == 50_000 == machine.path("data").stat().st_size
    assert_goes_on(machine, 50_000)


def test_only_what_the_disk_says_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    durable.write_out(writer, 0, 1)  # of a pipe nothing can be written out
    os.close(reader)
    os.close(writer)
    with (tmp_path / "file").open("wb") as file:
        file.write(CONTENT)
        file.flush()
        durable.write_out(file.fileno(), 0, len(CONTENT))
        monkeypatch.setattr(durable, "_LIBC", object())  # a C library that has no such call
        durable.write_out(file.fileno(), 0, len(CONTENT))


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EUCLEAN, errno.EROFS])
def test_refusal_of_the_disk_is_raised(monkeypatch: pytest.MonkeyPatch, error_number: int) -> None:
    """A file system that finds itself damaged gives bytes up, and may not say so again."""

    class Library:
        @staticmethod
        def sync_file_range(*_: object) -> int:
            ctypes.set_errno(error_number)
            return -1

    monkeypatch.setattr(durable, "_LIBC", Library)
    with pytest.raises(OSError, match=re.escape(os.strerror(error_number))):
        durable.write_out(0, 0, 1)


def test_disk_is_not_told_of_what_a_sync_is_at(machine: Machine) -> None:
    with machine.uploads.open(UUID, None) as upload:
        append(upload, 0, 30_000)
        machine.faults.sync_may_end.clear()
        upload.begin_sync()
        append(upload, 30_000, 70_000)
        assert machine.faults.begun == [(0, 20_000), *steps(30_000, 70_000)]
        machine.faults.sync_may_end.set()
