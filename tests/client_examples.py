"""The examples of the Python client in its documents, by name."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = ("client/README.md", "docs/client.md", "docs/fsspec.md")
NEEDS_PANDAS: Final = "pandas"  # run by the long test of the wheel, which has an environment with it
_BLOCK: Final = re.compile(r"(?:<!-- test: (?P<name>[\w ]+) -->\n)?```python\n(?P<text>.*?)```", re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Each block of Python in the documents, with its name, "" without one, in their order."""
    texts = ((ROOT / name).read_text("utf-8") for name in DOCUMENTS)
    return [(match["name"] or "", match["text"]) for text in texts for match in _BLOCK.finditer(text)]


def example(name: str) -> str:
    """The one of this name."""
    (text,) = (text for each, text in examples() if each == name)
    return text
