"""Makes text safe to print: a stolen node may have written it. Shared by all that print to a terminal.

Controls (C0, C1), marks that turn the direction of text, halves of surrogate pairs and letters that Unicode
does not know become `?`. `guard_streams` does so with everything that is written to standard output and
standard error. Tables and progress bars, whose own codes steer the terminal, do so with the texts in them.

Tested by tests/cluster/test_command_printing.py.
"""

import codecs
import io
import re
import sys
from typing import Any, Final, TextIO

_LINES: Final = "\n\t"
_UNPRINTED: Final = re.compile(r"[^ -~]")


def is_harmless(letter: str) -> bool:
    """Whether a terminal shows this letter and does nothing else; it may be the name of a file then."""
    from filestore_client.base import paths  # here: few texts have such letters, and loading it takes a while

    return paths.is_harmless(letter)


def printable_name(text: str) -> str:
    """Return text of others on one line of a terminal."""
    return text if text.isprintable() else "".join(each if is_harmless(each) else "?" for each in text)


def printable_text(text: str) -> str:
    """Return text of several lines for a terminal."""
    parts = re.split(f"([{_LINES}])", text)
    return "".join(part if part in _LINES else printable_name(part) for part in parts)


def printable_json(text: str) -> str:
    """Return JSON of one or several lines with escapes for what `printable_text` would replace."""

    def escaped(found: re.Match[str]) -> str:
        letter = found[0]
        if is_harmless(letter) or letter in _LINES:
            return letter
        units = letter.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

    return _UNPRINTED.sub(escaped, text)


class PrintableStream:
    """A text stream that writes printable text only. `terminal_stream` returns the stream below it."""

    def __init__(self, steering: TextIO) -> None:
        self.steering = steering

    def write(self, text: str) -> int:
        """Write the text."""
        self.steering.write(printable_text(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write each of the texts."""
        for line in lines:
            self.write(line)

    @property
    def encoding(self) -> str:
        """Return the encoding; Latin-1 for ASCII, over whose streams click would put one of its own."""
        name = self.steering.encoding or "ascii"
        return "latin-1" if codecs.lookup(name).name == "ascii" else name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.steering, name)


def guard_streams() -> None:
    """Let standard output and standard error write printable text only.

    Letters that their encoding lacks become `?` too.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
        setattr(sys, name, PrintableStream(stream))


def terminal_stream(stream: TextIO) -> TextIO:
    """Return the stream for output that steers the terminal itself, and whose texts are printable."""
    return stream.steering if isinstance(stream, PrintableStream) else stream
