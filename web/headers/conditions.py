"""Conditional requests and the download's descriptive headers (RFC 9110, sections 8.8 and 13; RFC 6266).

Pure: header values and the content's validators in, a decision out. Entity tags here carry their quotes, and
are strong: content never changes under a tag. Dates compare by whole seconds, which is all that HTTP can say.
"""

import enum
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import quote

from ca.errors import PreconditionFailed

FILENAME_CHARACTERS_MAX = 255
_HEADER_CHARACTERS_MAX = 8192  # the HTTP parser's own limit for one header

_TAG = re.compile(r'[ \t]*(?:(W/)?("[\x21\x23-\x7e\x80-\uffff]*")[ \t]*)?(?:,|\Z)')
_DATES = (  # section 5.6.7: the preferred form, then the two obsolete ones that recipients must accept
    "%a, %d %b %Y %H:%M:%S GMT",
    "%A, %d-%b-%y %H:%M:%S GMT",
    "%a %b %d %H:%M:%S %Y",
)
_BIDI_CLASSES = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
_BIDI_MARKS = frozenset("\u200e\u200f\u061c")
_ATTRIBUTE_CHARACTERS = "!#$&+-.^_`|~"  # what RFC 8187, section 3.2.1 leaves bare, besides letters and digits


class Outcome(enum.Enum):
    """The action if no precondition failed."""

    PROCEED = "proceed"
    NOT_MODIFIED = "not modified"


def evaluate(
    method: str,
    headers: Mapping[str, str],
    etag: str | tuple[str, ...],
    modified_at_ms: int,
    *,
    what: str = "the content",
) -> Outcome:
    """Whether to perform `method` on what exists, in the order of RFC 9110, section 13.2.2.

    `headers` maps names as the RFC spells them, or is a case-insensitive multi-dictionary. `etag`: its tag,
    or several that name it alike. Raises PreconditionFailed; NOT_MODIFIED comes for GET and HEAD only.
    If-Range is `if_range_matches`.
    """
    etags = (etag,) if isinstance(etag, str) else etag
    if_match = field_of(headers, "If-Match")
    unmodified_since = field_of(headers, "If-Unmodified-Since")
    if if_match is not None:
        if not any(_matches(if_match, each, weak=False) for each in etags):
            raise PreconditionFailed(f"If-Match: {what} has another entity tag.")
    elif unmodified_since is not None:
        limit_s = parse_http_date(unmodified_since)
        if limit_s is not None and modified_at_ms // 1000 > limit_s:
            raise PreconditionFailed(f"If-Unmodified-Since: {what} is newer.")
    return _evaluate_cache(method, headers, etags, modified_at_ms, what)


def require_content(headers: Mapping[str, str], etag: str) -> None:
    """Check whether to write content that has this entity tag now, "" for none yet (RFC 9110, section 13.1).

    Raises PreconditionFailed. Dates are ignored: existing content is not written again.
    """
    if_match = field_of(headers, "If-Match")
    if if_match is not None and not (etag and _matches(if_match, etag, weak=False)):
        what = "the content has another entity tag" if etag else "the file has no content"
        raise PreconditionFailed(f"If-Match: {what}.")
    if_none_match = field_of(headers, "If-None-Match")
    if etag and if_none_match is not None and _matches(if_none_match, etag, weak=True):
        raise PreconditionFailed("If-None-Match: the content has this entity tag.")


def _evaluate_cache(
    method: str, headers: Mapping[str, str], etags: tuple[str, ...], modified_at_ms: int, what: str
) -> Outcome:
    """Steps 3 and 4 of section 13.2.2: If-None-Match, and without it If-Modified-Since."""
    reads = method in ("GET", "HEAD")
    if_none_match = field_of(headers, "If-None-Match")
    if if_none_match is not None:
        if not any(_matches(if_none_match, each, weak=True) for each in etags):
            return Outcome.PROCEED
        if not reads:
            raise PreconditionFailed(f"If-None-Match: {what} has this entity tag.")
        return Outcome.NOT_MODIFIED
    modified_since = field_of(headers, "If-Modified-Since")
    if not reads or modified_since is None:
        return Outcome.PROCEED
    limit_s = parse_http_date(modified_since)
    unchanged = limit_s is not None and modified_at_ms // 1000 <= limit_s
    return Outcome.NOT_MODIFIED if unchanged else Outcome.PROCEED


def if_range_matches(header: str | None, etag: str, modified_at_ms: int) -> bool:
    """Whether Range is to be honoured (RFC 9110, section 13.1.5); if not, the whole is sent.

    Without the header it is. A tag must be equal and strong; a date must equal Last-Modified exactly, which
    is a strong validator here because content never changes once it is available.
    """
    if header is None:
        return True
    value = header.strip(" \t")
    if value.startswith(('"', "W/")):
        return value == etag
    return parse_http_date(value) == modified_at_ms // 1000


def http_date(at_ms: int) -> str:
    """`at_ms` since the epoch as an IMF-fixdate, such as `Sun, 06 Nov 1994 08:49:37 GMT` (section 5.6.7)."""
    return formatdate(at_ms // 1000, usegmt=True)


def parse_http_date(value: str) -> int | None:
    """Seconds since the epoch of any of the three forms of section 5.6.7; None if it is no date.

    A two-digit year from 69 on is in the 20th century, as POSIX reads it: no clock is consulted here.
    """
    text = value.strip(" \t").replace(":60 ", ":59 ")  # a leap second has no datetime
    for form in _DATES:
        try:
            return int(datetime.strptime(text, form).replace(tzinfo=UTC).timestamp())
        except ValueError:
            continue
    return None


def content_disposition(filename: str) -> str:
    """An `attachment` value that names the download (RFC 6266), safe for any label that users may give.

    The plain parameter has ASCII for old clients, the extended one UTF-8 (RFC 8187). Controls, slashes and
    characters that reverse the direction of text, which make `exe` look like `txt`, become `_` in both.
    """
    shown = "".join("_" if _misleads(character) else character for character in filename)
    shown = shown[:FILENAME_CHARACTERS_MAX] or "download"
    plain = "".join(character if _plain(character) else "_" for character in shown)
    extended = quote(shown, safe=_ATTRIBUTE_CHARACTERS, encoding="utf-8", errors="replace")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{extended}"


def field_of(headers: Mapping[str, str], name: str) -> str | None:
    """One field's value; lines that repeat it are one list (RFC 9110, section 5.3)."""
    getall = getattr(headers, "getall", None)  # what multi-dictionaries offer, and plain mappings do not
    if getall is None:
        return headers.get(name)
    values = getall(name, ())
    return ", ".join(values) if values else None


def _misleads(character: str) -> bool:
    """Whether a character could break a header, leave a folder, or show the name in a false order."""
    if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in "/\\":
        return True
    return character in _BIDI_MARKS or unicodedata.bidirectional(character) in _BIDI_CLASSES


def _plain(character: str) -> bool:
    """Whether a character may stand in the quoted ASCII form; `%` is out, as some clients decode it there."""
    return " " <= character <= "~" and character not in '"%'


def _matches(header: str, etag: str, *, weak: bool) -> bool:
    """Whether a list of entity tags, or `*`, covers `etag`; tags marked W/ count in weak comparison only.

    A list with a syntax error covers nothing: If-Match then fails, If-None-Match proceeds; both are safe.
    """
    text = header.strip(" \t")
    if text == "*":
        return True
    if len(text) > _HEADER_CHARACTERS_MAX:
        return False
    position, found = 0, False
    while position < len(text):
        match = _TAG.match(text, position)
        if match is None:
            return False
        found = found or (match[2] == etag and (weak or match[1] is None))
        position = match.end()
    return found
