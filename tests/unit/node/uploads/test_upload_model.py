"""Uploads against a model: whatever happens to them, they are the byte string that came."""

import errno
import hashlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ca import errors
from tests.unit.upload_machine import UUID, Machine, assert_stored

ACTIONS = (
    "append",
    "sync",
    "hold",
    "release",
    "drop_withheld",
    "rollback",
    "reopen",
    "kill",
    "power_cut",
    "full_disk",
    "failed_sync",
)


class Model:
    """What an upload must hold: a byte string, how much of it is durable, and where a hold began."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.content = b""
        self.durable = 0
        self.held: int | None = None
        self.noise = random.Random(7)
        self.upload = machine.uploads.open(UUID, None, with_md5=True)

    def do(self, action: str, number: int) -> None:
        getattr(self, action)(number)
        assert self.upload.offset == len(self.content)
        assert self.upload.durable_offset == self.durable
        assert self.upload.sha256 == hashlib.sha256(self.content).hexdigest()

    def append(self, size: int) -> None:
        piece = self.noise.randbytes(size)
        self.upload.append(piece)
        self.content += piece

    def sync(self, _: int) -> None:
        self.durable = len(self.content) if self.held is None else self.held
        assert self.upload.sync() == self.durable

    def hold(self, _: int) -> None:
        self.upload.withhold()
        self.held = len(self.content)

    def release(self, _: int) -> None:
        self.upload.release()
        self.held = None

    def drop_withheld(self, _: int) -> None:
        self.upload.drop_withheld()
        self.content, self.held = self.content[: self.held], None

    def rollback(self, number: int) -> None:
        target = number % (len(self.content) + 1)
        self.upload.rollback_to(target)
        self.content, self.held = self.content[:target], None
        self.durable = min(self.durable, target)

    def reopen(self, _: int) -> None:
        self.upload.close()
        self.content, self.held = self.content[: self.held], None
        self.upload = self.machine.uploads.open(UUID, None, with_md5=True)

    def kill(self, _: int) -> None:
        self.machine.restart()
        self.lose_what_is_not_durable()

    def power_cut(self, survived: int) -> None:
        """Beyond the durable offset anything may be on disk: less, more, or other bytes."""
        self.machine.stop()
        with open(self.machine.path("data"), "r+b") as file:
            file.truncate(self.durable)
            file.seek(self.durable)
            file.write(self.noise.randbytes(survived))
        self.machine.start()
        self.lose_what_is_not_durable()

    def full_disk(self, size: int) -> None:
        self.machine.faults.fail_after(0, errno.ENOSPC)
        with pytest.raises(errors.InsufficientStorage):
            self.upload.append(self.noise.randbytes(size + 1))
        self.machine.faults.fail_after(0, None)
        self.content, self.held = self.content[: self.durable], None

    def failed_sync(self, _: int) -> None:
        self.append(10)
        self.machine.faults.fail_after(0, errno.EIO)
        with pytest.raises(errors.Internal):
            self.upload.sync()
        self.machine.faults.fail_after(0, None)
        self.upload.close()
        self.lose_what_is_not_durable()

    def lose_what_is_not_durable(self) -> None:
        self.content, self.held = self.content[: self.durable], None
        self.upload = self.machine.uploads.open(UUID, None, with_md5=True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 9000)), max_size=25))
def test_upload_is_the_byte_string_that_came_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    machine = Machine(tmp_path_factory.mktemp("model") / "data")
    model = Model(machine)
    for action, number in actions:
        model.do(action, number)
    model.upload.release()
    model.upload.finish(hashlib.sha256(model.content).hexdigest())
    assert model.upload.md5() == hashlib.md5(model.content).hexdigest()
    assert_stored(machine, model.content)
    machine.stop()
