"""Checks of request fields beyond types and bounds. Shared by the bodies and handlers of every resource.

Every refusal names the field first.

Tested by tests/unit/web/test_json_body.py.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

from api.bodies.fields import FOLDER_DEPTH_MAX, LABEL_CHARS_MAX
from ca.errors import InvalidRequest, NotFound
from metadata.model.identifiers import is_sha256, is_uuid
from runtime.timestamps import parse_rfc3339

Check = Callable[[str, str], str]  # takes a text and the name of its field; returns the accepted text
Checks = Mapping[str, Check]  # by the name of the field
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # C0, C1, and the line ends of Unicode
# RFC 9110, section 8.3.1, without quoted parameters' escapes: it goes back out in a header as it came.
_MEDIA_TYPE: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+.^_`|~-]+/[A-Za-z0-9!#$%&'*+.^_`|~-]+"
    r"(?:[ \t]*;[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+=(?:[A-Za-z0-9!#$%&'*+.^_`|~-]+|\"[ !#-\[\]-~]*\"))*"
)


def check_label(text: str, field: str) -> str:
    """A user's text, to be shown again: no control characters. Raises InvalidRequest naming `field`."""
    if _CONTROL.search(text):
        raise InvalidRequest(f"{field}: control characters are not allowed")
    return text


def check_filename(text: str) -> str:
    """A filename is a label, never a path. Raises InvalidRequest."""
    if "/" in text:
        raise InvalidRequest("filename: '/' is not allowed")
    return check_label(text, "filename")


def check_path(text: str) -> str:
    """The path of a folder in a bucket without "/" at its ends, "" for the top. Raises InvalidRequest."""
    path = text.removeprefix("/").removesuffix("/")
    if not path:
        return ""
    parts = path.split("/")
    if len(parts) > FOLDER_DEPTH_MAX:
        raise InvalidRequest(f"path: at most {FOLDER_DEPTH_MAX} folders in each other")
    for part in parts:
        if part in ("", ".", ".."):
            raise InvalidRequest(f"path: '{part}' is not the name of a folder")
        if len(part) > LABEL_CHARS_MAX:
            raise InvalidRequest(f"path: the name of a folder has at most {LABEL_CHARS_MAX} characters")
    return check_label(path, "path")


def check_media_type(text: str) -> str:
    """A content type that may stand in a header. Raises InvalidRequest."""
    if _MEDIA_TYPE.fullmatch(text) is None:
        raise InvalidRequest("content_type: expected a media type such as application/zip")
    return text


def check_uuid(text: str, field: str) -> str:
    """A UUID in lower case. Raises InvalidRequest naming `field`."""
    if not is_uuid(text.lower()):
        raise InvalidRequest(f"{field}: expected a UUID")
    return text.lower()


def check_sha256(text: str) -> str:
    """64 hex digits in lower case, or "". Raises InvalidRequest."""
    if text and not is_sha256(text.lower()):
        raise InvalidRequest("blob_sha256: expected 64 hex digits")
    return text.lower()


def end_ms(expires_at: str, ttl_seconds: int | None) -> int | None:
    """Return `expires_at` in milliseconds since 1970, None if it is "".

    Raises InvalidRequest if `ttl_seconds` is given too: the leader counts that from its own time.
    """
    if expires_at and ttl_seconds is not None:
        raise InvalidRequest("ttl_seconds: cannot be combined with expires_at")
    return parse_rfc3339(expires_at, "expires_at") if expires_at else None


def path_uuid(request: web.Request, name: str = "file_uuid") -> str:
    """The UUID in the path, in lower case. Raises NotFound: nothing has a malformed id.

    All ids are stored in lower case; capitals mean the same (RFC 9562, section 4).
    """
    text = request.match_info[name].lower()
    if not is_uuid(text):
        raise NotFound(f"No such {name.removesuffix('_uuid').replace('_', ' ')}.")
    return text
