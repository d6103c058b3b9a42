"""Every command is classified by the records that it makes untrue."""

from typing import get_args

import msgspec
import pytest

from metadata.model.records import Caller, FileRecord
from metadata.protocol import commands
from metadata.protocol.invalidation import (
    CLASSIFIED,
    EVERY_KEY,
    EVERYTHING,
    NOTHING,
    invalidated_keys,
    keys_of,
)
from tests.unit.file_records import available_file
from tests.unit.state import ADMIN


def test_every_command_is_classified() -> None:
    assert set(get_args(commands.AnyCommand)) == CLASSIFIED


def test_command_that_is_not_known_makes_everything_untrue() -> None:
    class Unheard(msgspec.Struct):
        pass

    assert invalidated_keys(Unheard()) == EVERYTHING  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (commands.DeleteFile(caller=ADMIN, file_uuid="f", kind=""), {"file:f"}),
        (commands.UpdateVm(caller=ADMIN, file_uuid="f", ram_mb=1), NOTHING),
        (commands.RevokeUser(caller=ADMIN, user_id="u"), {"user:u"}),
        (commands.AdmitUser(caller=ADMIN, user_id="u", roles=[], groups=None), {"user:u"}),
        (commands.AdmitUser(caller=ADMIN, user_id="u", roles=None, groups=None), NOTHING),
        (commands.RemoveMember(caller=ADMIN, group="g", user_id="u"), {"user:u"}),
        (commands.DeleteGroup(caller=ADMIN, group="g"), EVERYTHING),
        (
            commands.WithdrawPermission(caller=ADMIN, target="file", target_id="f", permission_id="p"),
            {"file:f"},
        ),
        (
            commands.WithdrawPermission(caller=ADMIN, target="bucket", target_id="b", permission_id="p"),
            {"bucket:b"},
        ),
        (commands.TerminateUpload(caller=ADMIN, file_uuid="f"), NOTHING),
        (commands.Expire(), NOTHING),
    ],
)
def test_command_names_the_records_that_it_makes_untrue(command: commands.AnyCommand, keys: set[str]) -> None:
    assert invalidated_keys(command) == keys


@pytest.mark.parametrize("command", [commands.UpdateProjectFile, commands.UpdateVm, commands.UpdateBackup])
def test_what_is_described_anew_is_in_no_record_that_is_kept(command: type[msgspec.Struct]) -> None:
    shared = set(command.__struct_fields__) & set(FileRecord.__struct_fields__)
    named = {"filename": "lab", "content_type": "text/plain", "path": "lab", "retention_hours": 1}
    assert shared == {"file_uuid", *named}
    for name, value in named.items():
        changed = msgspec.convert({"caller": ADMIN, "file_uuid": "f", name: value}, command)
        assert invalidated_keys(changed) == {"file:f"}  # type: ignore[arg-type]  # it is one


def test_record_is_kept_under_its_file_its_reader_its_bucket_and_all() -> None:
    file = available_file()

    assert set(keys_of(Caller("u", 1), file)) == {"file:f", "user:u", "bucket:b", EVERY_KEY}
