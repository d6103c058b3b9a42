"""Every test that is marked as long is run by a target of the Makefile."""

import re

from tests.sources import ROOT, SOURCES, name_of

MARK = re.compile(r"pytest\.mark\.long\b")


def test_every_long_test_belongs_to_a_suite_that_make_runs() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    runs = [line for line in makefile.splitlines() if "-m pytest -m long" in line]
    suites = [word for line in runs for word in line.split() if word.startswith("tests/")]
    assert len(suites) > 3
    marked = [name_of(path) for path in SOURCES if MARK.search(path.read_text(encoding="utf-8"))]
    assert len(marked) > 20
    faults = [name for name in marked if not any(name == s or name.startswith(f"{s}/") for s in suites)]
    assert not faults, f"long, and run by nobody: {', '.join(faults)}"
