"""Times as the API writes and reads them: RFC 3339, UTC, millisecond precision, `Z`. No I/O here.

Tested by tests/unit/web/test_json_body.py.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ca.errors import InvalidRequest

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_AT_MS_MAX: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z: years have four digits
# RFC 3339, section 5.6, where fromisoformat takes more; [0-9] because \d takes the digits of every script.
_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:)([0-9]{2})"
    r"((?:\.[0-9]{1,64})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))"
)


def rfc3339(at_ms: int | None) -> str:
    """`2026-11-20T12:00:00.000Z`, or "" for 0 and None, which stand for a time that is not set."""
    if not at_ms:
        return ""
    assert 0 < at_ms <= _AT_MS_MAX, "a time outside 1970..9999"
    return (_EPOCH + at_ms * _MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str, field: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time with a zone; finer digits are cut off.

    A leap second counts as the second after it. Raises InvalidRequest naming `field` for anything else, and
    for times outside 1970..9999.
    """
    match = _RFC3339.fullmatch(text)
    at_ms = _milliseconds(*match.groups()) if match is not None else None
    if at_ms is None or not 0 < at_ms <= _AT_MS_MAX:
        raise InvalidRequest(
            f"{field}: expected an RFC 3339 time with a zone, such as 2026-11-20T12:00:00.000Z"
        )
    return at_ms


def _milliseconds(minute: str, second: str, rest: str) -> int | None:
    """None when a part is out of its range, as in February 30."""
    is_leap = second == "60"  # which no datetime can hold
    try:
        moment = datetime.fromisoformat(f"{minute}{'59' if is_leap else second}{rest}".upper())
    except ValueError:
        return None
    return (moment - _EPOCH) // _MILLISECOND + (1000 if is_leap else 0)
