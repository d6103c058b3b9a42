"""The names of users, groups and roles, as tokens carry them. No I/O here.

Apart from the tokens, for programs that need no signatures: loading those takes a while.

Tested by tests/unit/ca/test_usertoken.py.
"""

import re
from typing import Final

from ca.errors import InvalidRequest

NAMES_MAX: Final = 64
NAME_CHARS_MAX: Final = 64
USER_ID_CHARS_MAX: Final = 128
NAME_CHARACTERS: Final = "[A-Za-z0-9._@:-]"

_NAME: Final = re.compile(f"{NAME_CHARACTERS}+")


def check_user_id(value: object, field: str = "user_id") -> str:
    """A user's id, 1..128 characters of `A-Z a-z 0-9 . _ @ : -`. Raises InvalidRequest naming `field`."""
    if not isinstance(value, str) or len(value) > USER_ID_CHARS_MAX or not _NAME.fullmatch(value):
        raise InvalidRequest(f"{field}: 1 to {USER_ID_CHARS_MAX} of A-Z a-z 0-9 . _ @ : - are required")
    return value


def is_name(text: str) -> bool:
    """Whether a group or a role may have this name."""
    return len(text) <= NAME_CHARS_MAX and _NAME.fullmatch(text) is not None


def check_names(value: object, field: str) -> tuple[str, ...]:
    """Roles or groups: a list of at most 64 names of 1..64 characters, repeats dropped.

    Raises InvalidRequest.
    """
    if not isinstance(value, list | tuple) or len(value) > NAMES_MAX:
        raise InvalidRequest(f"{field}: a list of at most {NAMES_MAX} names is required")
    for name in value:
        if not isinstance(name, str) or not is_name(name):
            raise InvalidRequest(f"{field}: each name must be 1 to {NAME_CHARS_MAX} of A-Z a-z 0-9 . _ @ : -")
    return tuple(dict.fromkeys(value))
