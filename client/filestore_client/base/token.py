"""The token of a client: text, or a file that is read again. Shared by transport, retries and sign-in.

The file is read again when the cluster rejects the token that it held.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from filestore_client.base.errors import InvalidRequest, Unauthorized

FILE_CHARS_MAX = 64 << 10  # a bound on what a wrong path costs
# A longer one is answered 400 and not 401, after which its file is never read again.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{0,4096}")


class TokenRenewed(Unauthorized):
    """The cluster rejected a token whose file holds another one by now: the same request may succeed."""


class Token:
    """The token that requests carry. All transports of one client share it."""

    def __init__(self, text: str, *, file: Path | None = None) -> None:
        """Hold a token. `file`: its source. Raises InvalidRequest for a text that no header can carry."""
        require_token(text)
        self.text = text
        self._file = file

    def is_renewed(self, rejected: str) -> bool:
        """Whether there is another token than the rejected one by now. Reads the file to find out."""
        if self.text == rejected and self._file is not None and self._file.is_file():  # a pipe is read once
            with suppress(InvalidRequest):
                self.text = _read(self._file) or rejected
        return self.text != rejected


def token_of(given: "str | os.PathLike[str] | Token") -> Token:
    """The token that a caller gave as a text or as the path of a file. Raises InvalidRequest."""
    if isinstance(given, Token):
        return given
    if isinstance(given, str):
        return Token(given)
    path = Path(given)
    return Token(_read(path), file=path)


def require_token(token: str) -> None:
    """Raise InvalidRequest for a text that no header can carry."""
    if not _TOKEN.fullmatch(token):
        raise InvalidRequest("This is not a token. Expected one line of letters, digits and -._~+/=.")


def _read(path: Path) -> str:
    """The text of the file, which editors on Windows begin with a mark. Raises InvalidRequest."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(FILE_CHARS_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The token cannot be read: {error}") from error
    require_token(text)
    return text
