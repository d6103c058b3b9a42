"""What lies in the directory of an upload counts only if it names that upload."""

import uuid

import pytest

from node.diskio.durable import SLOT_BYTES, SLOT_SPACING_BYTES
from tests.unit.upload_machine import CONTENT, UUID, Machine


@pytest.mark.parametrize("names", [("offset",), ("offset", "data"), ("offset", "epoch", "data")])
def test_files_that_were_exchanged_with_those_of_another_upload_are_not_trusted(
    machine: Machine, names: tuple[str, ...]
) -> None:
    other = str(uuid.UUID(int=uuid.UUID(UUID).int + 1))
    for file_uuid, size_bytes in ((UUID, 70_000), (other, 80_000)):
        with machine.uploads.open(file_uuid, None) as upload:
            upload.append(CONTENT[:size_bytes])
            upload.sync()
            upload.enter_epoch(1)
    machine.restart()
    for name in names:
        paths = machine.path(name), machine.path(name).parent.parent / other / name
        aside = machine.directory / name
        for source, target in ((paths[0], aside), (paths[1], paths[0]), (aside, paths[1])):
            source.rename(target)
    assert [machine.uploads.durable_offset(each) for each in (UUID, other)] == [0, 0]
    assert machine.uploads.epoch(UUID) == (0 if "epoch" in names else 1)
    for file_uuid in (UUID, other):
        with machine.uploads.open(file_uuid, None) as upload:
            assert upload.offset == 0
            upload.append(CONTENT[:500])
            upload.sync()
    machine.restart()
    assert [machine.uploads.durable_offset(each) for each in (UUID, other)] == [500, 500]


def test_upload_goes_on_from_an_offset_that_an_older_release_recorded(machine: Machine) -> None:
    """Release 0.1.0 names no upload in it, and reads no more than the slots."""
    with machine.uploads.open(UUID, None) as upload:
        upload.append(CONTENT[:70_000])
        upload.sync()
    machine.restart()
    slots = machine.path("offset").read_bytes()
    assert not slots[:SLOT_SPACING_BYTES].strip(bytes(1)), "the first write goes to the second slot"
    machine.path("offset").write_bytes(slots[: SLOT_SPACING_BYTES + SLOT_BYTES])
    with machine.uploads.open(UUID, None) as upload:
        assert upload.offset == 70_000
