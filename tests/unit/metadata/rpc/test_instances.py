"""Whom a coordinator takes for the one that it has known."""

from pathlib import Path

import msgspec
import pytest

from ca.errors import Conflict, InvalidRequest
from metadata.rpc.instances import Instance, KnownInstances, count_start, parse_instance

FIRST = Instance("a" * 16, 5, "1" * 16)
AGAIN = Instance("a" * 16, 6, "2" * 16)


def test_each_start_of_a_directory_has_the_next_number(tmp_path: Path) -> None:
    begun = [count_start(tmp_path / "instance.json") for _ in range(3)]
    assert [each.start for each in begun if each] == [1, 2, 3]
    assert len({each.directory for each in begun if each}) == 1
    assert len({each.process for each in begun if each}) == 3
    assert [parse_instance(str(each)) for each in begun] == begun


@pytest.mark.parametrize("content", [b"", b"{}", b'["x", 1, "y"]'])
def test_directory_that_keeps_no_count_speaks_of_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "instance.json"
    path.write_bytes(content)
    assert count_start(path) is None
    assert path.read_bytes() == content
    assert count_start(tmp_path / "missing" / "instance.json") is None


@pytest.mark.parametrize(
    "text", ["", "x", "a.1.b", f"{'a' * 16}.0.{'b' * 16}", f"{'a' * 16}.1", f"{FIRST}.2"]
)
def test_malformed_header_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_instance(text)


@pytest.mark.parametrize(
    ("then", "is_admitted"),
    [
        (FIRST, True),
        (AGAIN, True),
        (msgspec.structs.replace(AGAIN, start=500), True),
        (msgspec.structs.replace(FIRST, process="3" * 16), False),
        (msgspec.structs.replace(AGAIN, start=4), False),
        (msgspec.structs.replace(AGAIN, directory="b" * 16), False),
    ],
)
async def test_same_process_and_later_starts_of_a_directory_are_admitted(
    tmp_path: Path, then: Instance, is_admitted: bool
) -> None:
    path = tmp_path / "instances.json"
    known = KnownInstances(path)
    known.read()
    await known.admit("c1", FIRST)
    await known.admit("c2", msgspec.structs.replace(FIRST, directory="c" * 16))
    later = KnownInstances(path)  # of the next process here
    later.read()
    for each in (known, later):
        if is_admitted:
            await each.admit("c1", then)
        else:
            with pytest.raises(Conflict):
                await each.admit("c1", then)
            await each.admit("c1", FIRST)


async def test_disk_that_keeps_nothing_and_a_file_of_others_refuse_nobody(tmp_path: Path) -> None:
    known = KnownInstances(tmp_path / "missing" / "instances.json")
    await known.admit("c1", FIRST)
    with pytest.raises(Conflict):
        await known.admit("c1", msgspec.structs.replace(FIRST, process="3" * 16))
    (tmp_path / "instances.json").write_bytes(b"no JSON")
    other = KnownInstances(tmp_path / "instances.json")
    other.read()
    await other.admit("c1", FIRST)
