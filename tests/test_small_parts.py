"""Small modules, rooms and Protocols are worth a place to look: each says why it is on its own."""

import ast
import io
import re
import tokenize
from collections import Counter

from release.client import COPIED, PACKAGE
from tests import rooms
from tests.sources import parse, tree_of

LINES_MIN = 60  # of code; a module below has a reason
SHARED_BY_MIN = 2
ROOM_MIN = 3  # modules; about four are worth a folder
OF_FILES = {"api.console"}  # a folder for what is served from it
SHARED = re.compile(r"\bShared by\b")
REASON = re.compile(r"\bShared by\b|\b[Aa]part\b|\b[Nn]o I/O\b|\bPure\b")
CUT = "A Protocol, as "
TESTED_BY = re.compile(r"^Tested by tests/.*\btest_\w+\.py\.$", re.MULTILINE)

KNOWN = rooms.modules()


def code_lines(source: str) -> int:
    """How many lines of a source have code: no comment, no docstring, not empty."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
            lines.update(range(token.start[0], token.end[0] + 1))
    for found in ast.walk(parse(source)):
        if isinstance(found, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = found.body[0] if found.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(lines)


def test_lines_of_code_are_counted() -> None:
    assert code_lines('"""A.\n\nB.\n"""\n\nimport os  # c\n\n# d\n\n\ndef f() -> None:\n    """E."""\n') == 2
    assert code_lines('X = """a\nb"""\n') == 2


def test_small_module_says_in_its_first_line_why_it_is_on_its_own() -> None:
    small = {
        name: (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        for name, path in KNOWN.items()
        if path.name != "__init__.py" and code_lines(path.read_text(encoding="utf-8")) < LINES_MIN
    }
    without = [name for name, first_line in small.items() if not REASON.search(first_line)]
    assert not without, (
        f"less than {LINES_MIN} lines of code: put it into the module that uses it. If it has to stay, its"
        " first line says why: what it is kept apart from (`Apart from ...`), which modules share it"
        f" (`Shared by ...`), or that it has no I/O (`Pure.`): {', '.join(without)}"
    )
    importers = Counter(name for path in KNOWN.values() for name in set(rooms.imports_of(path, KNOWN)))
    alone = [name for name, line in small.items() if SHARED.search(line) and importers[name] < SHARED_BY_MIN]
    assert not alone, f"said to be shared, and only one module imports it: {', '.join(alone)}"


def test_module_is_found_with_its_tests() -> None:
    """By the name of a test file, or its docstring names one (`Tested by ...`)."""
    files = {path.name for path in (rooms.ROOT / "tests").rglob("test_*.py")}
    without = [
        name
        for name, path in KNOWN.items()
        if path.name != "__init__.py"
        and f"test_{path.name}" not in files
        and path not in {PACKAGE / each for each in COPIED}
        and not TESTED_BY.search(ast.get_docstring(tree_of(path)) or "")
    ]
    assert not without, f"say in the docstring by which file they are tested: {', '.join(without)}"


def test_room_is_worth_a_folder() -> None:
    sizes = rooms.sizes_of(KNOWN)
    leaves = {room for room in sizes if not any(other.startswith(f"{room}.") for other in sizes)}
    small = [room for room in sorted(leaves - OF_FILES) if sizes[room] < ROOM_MIN]
    assert not small, f"too few modules for a folder: {', '.join(small)}"


def members_of(found: ast.ClassDef) -> set[str]:
    """What a class has by name: methods, attributes, and, which does no harm, variables of its methods."""
    names = {each.name for each in found.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    for each in ast.walk(found):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            names.add(each.attr)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
    return names


def test_protocol_with_one_implementation_says_which_circle_it_cuts() -> None:
    classes = [
        (found, members_of(found), {ast.unparse(base).partition("[")[0] for base in found.bases})
        for path in [*KNOWN.values(), *(rooms.ROOT / "tests" / "sim").glob("*.py")]
        for found in tree_of(path).body
        if isinstance(found, ast.ClassDef)
    ]
    without = []
    for protocol, wanted, bases in classes:
        if "Protocol" not in bases or protocol.name.startswith("_"):
            continue
        count = sum(wanted <= names for _, names, of in classes if "Protocol" not in of)
        if count <= 1 and CUT not in (ast.get_docstring(protocol) or ""):
            without.append(f"{protocol.name} ({count})")
    assert not without, f"use the class itself, or say which import that would bring: {', '.join(without)}"
