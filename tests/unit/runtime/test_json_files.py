"""Damaged JSON files are one kind of error, whatever is wrong with them."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.model.records import CoordinatorRecord
from metadata.rpc.instances import Instance, KnownInstances, copy_of, count_start
from metadata.rpc.roster import read_known, write_known
from runtime.json_files import decode_foreign, decode_sealed, encode_sealed

INSTANCE = Instance("a" * 16, 5, "1" * 16)
RECORD = CoordinatorRecord(coordinator_id="c1", address="127.0.0.1", peer_port=1, api_port=2)


@given(at=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_any_other_byte_is_read_or_refused(at: int, byte: int) -> None:
    raw = bytearray(msgspec.json.encode([RECORD]))
    raw[at % len(raw)] = byte
    try:
        found = decode_foreign(bytes(raw), list[CoordinatorRecord])
    except msgspec.MsgspecError:
        return
    assert isinstance(found, list)


def test_bytes_that_are_no_text_are_told_as_such() -> None:
    with pytest.raises(msgspec.DecodeError, match="not UTF-8"):
        decode_foreign(b'"\xf2"', str)


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_flipped_bit_of_a_sealed_file_is_noticed(at: int, bit: int) -> None:
    content = {"c2": INSTANCE, "c3": INSTANCE}
    raw = bytearray(encode_sealed(content, of="c1"))
    raw[at % len(raw)] ^= 1 << bit
    try:
        assert decode_sealed(bytes(raw), dict[str, Instance], of="c1") == content  # in what stands around it
    except msgspec.MsgspecError:
        return


def test_file_of_another_member_is_damage() -> None:
    with pytest.raises(msgspec.DecodeError, match="belongs to c2"):
        decode_sealed(encode_sealed([RECORD], of="c2"), list[CoordinatorRecord], of="c1")


async def test_digit_that_changed_in_what_is_known_of_others_refuses_nobody(tmp_path: Path) -> None:
    path = tmp_path / "instances.json"
    await KnownInstances(path, "c2").admit("c1", INSTANCE)
    path.write_bytes(path.read_bytes().replace(INSTANCE.directory.encode(), b"f" + b"a" * 15))
    known = KnownInstances(path, "c2")
    known.read()
    await known.admit("c1", INSTANCE)


@pytest.mark.parametrize("spoil", [lambda raw: raw.replace(b"2,", b"1,"), lambda _: b"", None])
@pytest.mark.parametrize("is_copy", [False, True])
def test_start_is_counted_on_from_the_other_copy(
    tmp_path: Path, spoil: Callable[[bytes], bytes] | None, is_copy: bool
) -> None:
    path = tmp_path / "instance.json"
    count_start(path, "c1")
    known = count_start(path, "c1")
    assert known is not None
    hurt = copy_of(path) if is_copy else path
    if spoil is None:
        hurt.unlink()
    else:
        hurt.write_bytes(spoil(hurt.read_bytes()))
    later = count_start(path, "c1")
    assert later is not None
    assert (later.directory, later.start) == (known.directory, 3)


def test_list_of_coordinators_with_a_flipped_bit_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "coordinators.json"
    write_known(path, [RECORD])
    path.write_bytes(path.read_bytes().replace(b'"c1"', b'"\xf21"'))
    assert read_known(path, [RECORD]) == [RECORD]
