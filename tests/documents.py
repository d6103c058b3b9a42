"""Shared by tests of documents: the pages of docs/, their headings, and all pages of the runbook."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = sorted((ROOT / "docs").glob("*.md"))
DECISIONS: Final = sorted((ROOT / "docs" / "decisions").glob("*.md"))
LINES_MAX: Final = 300  # of a page
RUNBOOK_PAGES: Final = [page for page in PAGES if page.stem.startswith("runbook")]
RUNBOOK: Final = "\n".join(page.read_text("utf-8") for page in RUNBOOK_PAGES)
CODE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """Return the anchors of all headings, as GitHub and mkdocs make them."""
    headings = _HEADING.findall(CODE.sub("", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
