"""JSON that others wrote, a disk or a peer: everything that is wrong with it is one kind of error. No I/O
here.
"""

from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def decode_foreign(raw: bytes, expected: type[_T]) -> _T:
    """Raises msgspec.DecodeError (a MsgspecError), also where bytes are no UTF-8: msgspec has that as an
    error of Python's own, which ended whoever had read a damaged file.
    """
    try:
        return msgspec.json.decode(raw, type=expected)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"not UTF-8 ({error.reason} at byte {error.start})") from error
