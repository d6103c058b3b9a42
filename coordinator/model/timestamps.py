"""Times as the API writes and reads them: RFC 3339, UTC, millisecond precision, `Z`. No I/O here."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from ca.errors import InvalidRequest

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_AT_MS_MAX: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z: years have four digits
# RFC 3339, section 5.6; [0-9] because \d takes the digits of every script.
_RFC3339: Final = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ](?P<time>[0-9]{2}:[0-9]{2}):(?P<second>[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]{1,64}))?(?:[Zz]|(?P<sign>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-9]{2}))"
)


def rfc3339(at_ms: int | None) -> str:
    """`2026-11-20T12:00:00.000Z`, or "" for 0 and None, which stand for a time that is not set."""
    if not at_ms:
        return ""
    assert 0 < at_ms <= _AT_MS_MAX, "a time outside 1970..9999"
    return (_EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def parse_rfc3339(text: str, field: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time with a zone; finer digits are cut off.

    A leap second counts as the second after it. Raises InvalidRequest naming `field` for anything else, and
    for times outside 1970..9999.
    """
    match = _RFC3339.fullmatch(text)
    at_ms = _milliseconds(match) if match is not None else None
    if at_ms is None or not 0 < at_ms <= _AT_MS_MAX:
        raise InvalidRequest(
            f"{field}: expected an RFC 3339 time with a zone, such as 2026-11-20T12:00:00.000Z"
        )
    return at_ms


def _milliseconds(match: re.Match[str]) -> int | None:
    """None when a part is out of its range, as in February 30."""
    second = int(match["second"])
    hours, minutes = int(match["hours"] or 0), int(match["minutes"] or 0)
    if second > 60 or hours > 23 or minutes > 59:
        return None
    try:
        minute_start = datetime.fromisoformat(f"{match['date']}T{match['time']}:00+00:00")
    except ValueError:
        return None
    offset_ms = (hours * 60 + minutes) * 60_000 * (-1 if match["sign"] == "-" else 1)
    fraction_ms = int((match["fraction"] or "0").ljust(3, "0")[:3])
    return (minute_start - _EPOCH) // _MILLISECOND + second * 1000 + fraction_ms - offset_ms
