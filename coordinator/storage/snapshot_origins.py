"""The source of a member's state, in a separate file. Shared by snapshots and the watch for divergence.

It is set if no other member confirmed the snapshot; "" for a state of its own, or one that a majority has
confirmed. Blocking.

Tested by tests/unit/coordinator/member/test_member_standing.py.
"""

import logging
from pathlib import Path
from typing import Final

import msgspec

from ca.secretfiles import write_durable
from runtime.json_files import decode_sealed, encode_sealed

UNKNOWN: Final = "?"  # no name of a coordinator

_log = logging.getLogger(__name__)


def write_origin(path: Path, origin: str) -> None:
    """Write the origin, durable on return."""
    write_durable(path, encode_sealed(origin))


def read_origin(path: Path) -> str:
    """Return the origin; UNKNOWN if unreadable: the state may be a copy, and is no witness then."""
    try:
        return decode_sealed(path.read_bytes(), str)
    except FileNotFoundError:
        return ""
    except (OSError, msgspec.MsgspecError) as error:
        _log.error("%s cannot be read: %s", path, error)
        return UNKNOWN
