"""Encodes texts into paths, and checks names. Shared by every resource and transfer."""

import unicodedata
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from filestore_client.base.errors import InvalidRequest

_JOINERS: Final = "\u200c\u200d"  # within words of some scripts, and within emoji


def is_harmless(letter: str) -> bool:
    """Whether a terminal shows this letter, or a space of any width, and does nothing else.

    macOS puts U+202F, a narrow space, into the name of every screenshot.
    """
    return letter.isprintable() or letter in _JOINERS or unicodedata.category(letter) == "Zs"


def forms_of(filename: str) -> Sequence[str]:
    """Return a name in both forms of its accents: macOS writes é as two letters (NFD), others as one."""
    return sorted({filename, unicodedata.normalize("NFC", filename), unicodedata.normalize("NFD", filename)})


def path_part(text: str) -> str:
    """Return the text as one part of a path. Raises InvalidRequest for a text that no path can carry.

    "." and ".." are resolved on the way to the server however they are encoded (URL standard, section 4.4).
    """
    if text in ("", ".", ".."):
        raise InvalidRequest(f"{text!r} is not an id or a name.")
    return quote(text, safe="")


def content_path(file_uuid: str) -> str:
    """Return the path of a file of any kind, where its content is read."""
    return f"/api/v1/files/{path_part(file_uuid)}"


def upload_path(file_uuid: str) -> str:
    """Return the path where content is uploaded."""
    return f"{content_path(file_uuid)}/content"
