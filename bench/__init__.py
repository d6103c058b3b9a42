"""Benchmarks: each prints a table and one JSON line, beside yardsticks of the same run on the same
machine.

`python -m bench.X --help` prints what X measures, and runs nothing.
"""

import ast
import sys
from pathlib import Path
from typing import Final

_TAKE_OPTIONS: Final = ("bench.etcd_load", "bench.load")  # and explain them themselves


def _explain_if_asked() -> None:
    """Print the docstring of the module that `-m` names, and end, if the only argument asks for help."""
    asked, *options = sys.orig_argv[sys.orig_argv.index("-m") + 1 :] if "-m" in sys.orig_argv else [""]
    path = Path(__file__).parent / f"{asked.removeprefix('bench.')}.py"
    if options in (["-h"], ["--help"]) and asked not in _TAKE_OPTIONS and path.is_file():
        print(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
        sys.exit(0)


_explain_if_asked()
