"""The format of the names of files and blobs, in requests and in a node's directory. No I/O here.

Tested by tests/unit/web/headers/test_tus_fields.py.
"""

import re
from typing import Final

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def is_uuid(text: str) -> bool:
    """Whether this is a UUID in lower case."""
    return _UUID.fullmatch(text) is not None


def is_sha256(text: str) -> bool:
    """Whether this is a sha256 in lower-case hexadecimal digits: the name of a blob."""
    return _SHA256.fullmatch(text) is not None
