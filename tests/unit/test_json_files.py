"""Damaged JSON files are one kind of error, whatever is wrong with them."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.json_files import decode_foreign
from coordinator.records import CoordinatorRecord
from coordinator.roster import read_known, write_known

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


def test_list_of_coordinators_with_a_flipped_bit_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "coordinators.json"
    write_known(path, [RECORD])
    path.write_bytes(path.read_bytes().replace(b'"c1"', b'"\xf21"'))
    assert read_known(path, [RECORD]) == [RECORD]
