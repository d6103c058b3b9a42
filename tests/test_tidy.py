"""What of the house style a machine can check: sizes, docstrings, imports, purity, names, private paths."""

import ast
import functools
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.documentation import Documentation
from api.routes import METADATA
from node.content.routes import OPERATIONS
from release.client import BEGIN, END
from tests.sources import ROOT, SOURCES, committed_files, name_of, tree_of

PACKAGES = ("ca", "runtime", "web", "metadata", "api", "coordinator", "node", "deploy")
CLIENT, OURS = "client/filestore_client", (*PACKAGES, "filestore_client")
FUNCTION_LINES_MAX = 60
FILE_LINES_MAX = 500
LINE_CHARACTERS_MAX = 110
MODULES_WITHOUT_MEANING = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
SENTENCE_END = re.compile(r"[.?!]\)?$")
LIST_MARK = re.compile(r"(\d+\.|[-*]) +")
LIST_IN_A_LINE = re.compile(r"(?:^|\s)1\. .*\s2\. ")
PURE_PACKAGES = ("coordinator/raft", "coordinator/machine")
PURE_IMPORTS = {
    "__future__",
    "ca.errors",
    "ca.names",
    "collections",
    "collections.abc",
    "coordinator",
    *("dataclasses", "enum"),
    "json",
    "msgspec",
    "typing",
}
PURE_IMPORTS_EXTRA = {
    "coordinator/raft": {"random"},  # for the type: the dice are handed in
    "coordinator/machine": {"sqlite3", "hmac"},  # hmac: comparing digests in constant time
}
PURE_NEIGHBOURS = ("coordinator.", "metadata.model", "metadata.protocol", "runtime.bounds", "runtime.times")
PURE_CALLS_FORBIDDEN = {"hash", "id", "open", "print", "eval", "exec", "__import__", "input"}
FENCE = ("web/internals/", f"{CLIENT}/filesystem")  # what fsspec lets others define begins so
# Public by name, but not by their documentation: what is made of them changes as private names do.
PRIVATE_MODULES = {
    "aiohttp.base_protocol",
    "aiohttp.client_proto",
    "aiohttp.http_parser",
    "aiohttp.http_writer",
    "aiohttp.payload",
    "aiohttp.web_protocol",
    "asyncio.sslproto",
}
PRIVATE_BASES = {"RequestHandler"}  # of aiohttp.web: public to be named, not to be changed
PUBLIC_IN_SPITE = {"os._exit"}  # documented
SQL_IMPURE = re.compile(r"\b(random|randomblob|strftime|julianday)\s*\(|'now'|CURRENT_TIME")


def imports_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every module that a source imports, anywhere in it, with its line."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Import):
            yield from ((alias.name, found.lineno) for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            assert found.level == 0, f"line {found.lineno}: imports are absolute"
            yield (found.module or "", found.lineno)


def sources_of(package: str) -> list[Path]:
    return [path for path in SOURCES if name_of(path).startswith(package + "/")]


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 10


def test_files_and_their_functions_and_lines_are_short() -> None:
    faults = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for at, line in enumerate(text.splitlines(), 1):
            if len(line) > LINE_CHARACTERS_MAX:
                faults.append(f"{name_of(path)}:{at}: {len(line)} characters")
        for found in ast.walk(tree_of(path)):
            if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (found.end_lineno or found.lineno) - found.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    faults.append(f"{name_of(path)}:{found.lineno}: {found.name} has {length} lines")
        if (count := (text.partition(BEGIN)[0] + text.partition(END)[2]).count("\n")) > FILE_LINES_MAX:
            faults.append(f"{name_of(path)} has {count} lines")
    assert not faults, "; ".join(faults)


def test_modules_say_what_their_job_is() -> None:
    docstrings = {name_of(path): ast.get_docstring(tree_of(path)) for path in SOURCES}
    faults = [name for name, text in docstrings.items() if not text or not text.splitlines()[0].strip()]
    assert not faults, "no docstring, or an empty line first: " + "; ".join(faults)


def test_public_functions_and_classes_are_documented() -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    faults = [
        f"{name_of(path)}:{found.lineno}: {found.name}"
        for package in (*PACKAGES, CLIENT)
        for path in sources_of(package)
        for found in tree_of(path).body
        if isinstance(found, kinds) and not found.name.startswith("_") and not ast.get_docstring(found)
    ]
    assert not faults, "no docstring: " + "; ".join(faults)


def docstrings_of(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Name, first line and text of every docstring in a source, the module's own included."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for found in ast.walk(tree):
        if isinstance(found, kinds) and (text := ast.get_docstring(found)) is not None:
            yield getattr(found, "name", "module"), found.body[0].lineno, text.rstrip()


@functools.cache
def document_for_clients() -> str:
    """The OpenAPI document in one line. Docstrings of handlers and bodies go out in it as they are."""
    encoded = Documentation([*METADATA, *OPERATIONS]).encoded.decode()
    return " ".join(encoded.replace("\\n", " ").split())


def is_for_clients(text: str) -> bool:
    return json.dumps(" ".join(text.split()), ensure_ascii=False) in document_for_clients()


def summary_fault(text: str) -> str:
    """What is wrong with how a docstring begins; "" for nothing."""
    first, *rest = text.splitlines() or [""]
    if not SENTENCE_END.search(first.rstrip()):
        return "the first line does not end a sentence"
    return "no blank line follows the first" if rest and rest[0].strip() else ""


def list_fault(text: str) -> str:
    """What is wrong with a list in a docstring; "" for nothing.

    A list is a paragraph of its own. Each item begins with a mark, and its further lines are indented.
    """
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        if LIST_IN_A_LINE.search(" ".join(lines)) and not LIST_MARK.match(lines[0].lstrip()):
            return f"items in one line: {lines[0]}"
        # A heading's underline stands before what it is the heading of.
        while len(lines) > 1 and (set(lines[1].strip()) == {"-"}):
            lines = lines[2:]
        starts = [LIST_MARK.match(line) is not None for line in lines]
        if not any(starts):
            continue
        if not starts[0]:
            return f"a list begins inside of a paragraph: {lines[starts.index(True)]}"
        for line, is_start in zip(lines, starts, strict=True):
            if not is_start and not line.startswith("  "):
                return f"a line of an item is not indented: {line}"
            if LIST_IN_A_LINE.search(line):
                return f"items in one line: {line}"
    return ""


def test_docstrings_begin_with_a_sentence_that_stands_alone() -> None:
    faults = [
        f"{name_of(path)}:{line}: {name}: {fault}"
        for package in (*PACKAGES, CLIENT)
        for path in sources_of(package)
        for name, line, text in docstrings_of(tree_of(path))
        if (fault := summary_fault(text)) and not is_for_clients(text)
    ]
    assert not faults, "; ".join(faults)


def test_lists_in_docstrings_are_whole() -> None:
    faults = [
        f"{name_of(path)}:{line}: {name}: {fault}"
        for package in (*PACKAGES, CLIENT)
        for path in sources_of(package)
        for name, line, text in docstrings_of(tree_of(path))
        if (fault := list_fault(text))
    ]
    assert not faults, "; ".join(faults)


@pytest.mark.parametrize(
    "text",
    ["What goes on in the next\nline.", "A sentence.\nAnd more of it.", "A list:\n\n- one", ""],
)
def test_summary_check_notices(text: str) -> None:
    assert summary_fault(text)


@pytest.mark.parametrize(
    "text",
    [
        "It does:\n1. this\n2. that",
        "1. this\nand more\n2. that",
        "It does: 1. this 2. that",
        "1. this, then 2. that; 1. again 2. more",
        "Two things:\n- one",
        "- one, which\ngoes on",
    ],
)
def test_list_check_notices(text: str) -> None:
    assert list_fault(text)


@pytest.mark.parametrize(
    "text", ["One.", "Is it?\n\nYes.", "One. (Two.)", "In order:\n\n1. this\n   goes on\n2. that"]
)
def test_list_check_takes_whole_lists(text: str) -> None:
    assert not list_fault(text)


@pytest.mark.parametrize("packages", [PACKAGES, (CLIENT,)])
def test_no_two_public_classes_have_one_name(packages: tuple[str, ...]) -> None:
    places: dict[str, list[str]] = {}
    for package in packages:
        for path in sources_of(package):
            for found in tree_of(path).body:
                if isinstance(found, ast.ClassDef) and not found.name.startswith("_"):
                    places.setdefault(found.name, []).append(name_of(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, "; ".join(f"{name}: {', '.join(found)}" for name, found in twice.items())


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package: str) -> None:
    later = PACKAGES[PACKAGES.index(package) + 1 :]
    faults = [
        f"{name_of(path)}:{line} imports {module}"
        for path in sources_of(package)
        for module, line in imports_of(tree_of(path))
        if module.split(".")[0] in (*later, "tests", "bench")
    ]
    assert not faults, "; ".join(faults)


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_pure_packages_import_nothing_that_touches_the_world(package: str) -> None:
    allowed = PURE_IMPORTS | PURE_IMPORTS_EXTRA[package]
    faults = [
        f"{name_of(path)}:{line} imports {module}"
        for path in sources_of(package)
        for module, line in imports_of(tree_of(path))
        if module not in allowed and not module.startswith(PURE_NEIGHBOURS)
    ]
    assert not faults, "; ".join(faults)


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_pure_packages_import_only_pure_or_plain_data_modules_of_ours(package: str) -> None:
    models = ("bounds", "instance", "listed_records", "records", "replica_records")
    data_modules = {
        *(f"metadata.model.{name}" for name in models),
        "metadata.protocol",  # its packages and modules, by name
        "metadata.protocol.commands",
        "metadata.protocol.queries",
        "metadata.protocol.calls",
    }
    faults = [
        f"{name_of(path)}:{line} imports {module}"
        for path in sources_of(package)
        for module, line in imports_of(tree_of(path))
        if module.startswith("coordinator.")
        and module not in data_modules
        and not module.startswith(package.replace("/", "."))
    ]
    assert not faults, "; ".join(faults)


def test_machine_uses_nothing_whose_outcome_could_differ() -> None:
    sources = sources_of("coordinator/machine")
    faults = [f"{name_of(path)}: {fault}" for path in sources for fault in impurities(tree_of(path))]
    assert len(sources) > 10
    assert not faults, "; ".join(faults)


def impurities(tree: ast.Module) -> Iterator[str]:
    """Set iteration, hash(), float literals and true division, and SQL that asks a clock or dice."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Constant) and isinstance(found.value, float):
            yield f"line {found.lineno}: a float"
        if isinstance(found, ast.Constant) and SQL_IMPURE.search(str(found.value)):
            yield f"line {found.lineno}: SQL asks a clock or dice"
        if isinstance(found, ast.BinOp) and isinstance(found.op, ast.Div):
            yield f"line {found.lineno}: true division makes a float"
        if isinstance(found, ast.Call) and called(found) in PURE_CALLS_FORBIDDEN:
            yield f"line {found.lineno}: {called(found)}()"
        if isinstance(found, ast.For | ast.comprehension) and is_set(found.iter):
            yield f"line {found.iter.lineno}: iterates over a set"


def called(call: ast.Call) -> str:
    """The plain name that is called; "" for a method."""
    return call.func.id if isinstance(call.func, ast.Name) else ""


def is_set(expression: ast.expr) -> bool:
    if isinstance(expression, ast.Set | ast.SetComp):
        return True
    return isinstance(expression, ast.Call) and called(expression) in {"set", "frozenset"}


@pytest.mark.parametrize(
    "source",
    [
        "x = 0.5",
        "x = a / b",
        "x = hash(a)",
        "for x in {1, 2}: pass",
        "y = [x for x in set(a)]",
        "db.execute('SELECT random()')",
        "db.execute(\"SELECT datetime('now')\")",
    ],
)
def test_purity_check_notices(source: str) -> None:
    assert list(impurities(ast.parse(source)))


def test_module_names_say_something() -> None:
    faults = [
        name_of(path)
        for path in SOURCES
        if set(path.relative_to(ROOT).with_suffix("").parts) & MODULES_WITHOUT_MEANING
    ]
    assert not faults


def test_committed_files_name_no_private_path_and_no_package_host() -> None:
    # Put together here, so that this file does not hold what it looks for.
    private = [
        r"(?<![\w.])/(?:wo" + r"rk|ho" + r"me|ro" + r"ot)/[a-z.]",
        r"\.py" + r"env\b",
        r"files\.python" + r"hosted",
        r"--(?:extra-)?index" + r"-url\s+\S*://",
        r"find" + r"-links",
    ]
    pattern = re.compile("|".join(private))
    faults = []
    for path in committed_files():
        if path.suffix in {".png", ".ico", ".webp", ".woff2"} or path.name == "LICENSE":
            continue
        for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = pattern.search(line)
            if found:
                faults.append(f"{name_of(path)}:{at}: {found.group()}")
    assert not faults, "; ".join(faults)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removeprefix("client.").removesuffix(".__init__")


@functools.cache
def private_names_of(foreign: type) -> frozenset[str]:
    """Those of a class that is not ours: in itself, and what its methods give to `self`."""
    names = {name for name in vars(foreign) if is_private(name)}
    try:
        source = inspect.getsource(foreign)
    except (OSError, TypeError):  # it is not of Python
        return frozenset(names)
    return frozenset(names | {name for name in re.findall(r"\bself\.(_\w+)", source) if is_private(name)})


def inherited_private_names(module: str, class_name: str) -> frozenset[str]:
    """Those that a class of ours gets from classes of others."""
    made = getattr(importlib.import_module(module), class_name)
    foreign = [base for base in made.__mro__ if base.__module__.partition(".")[0] not in OURS]
    return frozenset().union(*map(private_names_of, foreign))


def names_used(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Every private name that a source touches: of what ("" where it is defined), and in which line."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Attribute) and is_private(found.attr):
            yield ast.unparse(found.value), found.attr, found.lineno
        elif isinstance(found, ast.Call) and called(found) in {"getattr", "setattr", "hasattr", "delattr"}:
            name = found.args[1]
            if isinstance(name, ast.Constant) and is_private(str(name.value)):
                yield ast.unparse(found.args[0]), str(name.value), found.lineno
        elif isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) and is_private(found.name):
            yield "", found.name, found.lineno
        elif isinstance(found, ast.Name) and isinstance(found.ctx, ast.Store) and is_private(found.id):
            yield "", found.id, found.lineno


def foreign_uses(tree: ast.Module, module: str) -> Iterator[tuple[str, int]]:
    """Each use of a name that is private to a library: imported, of an object, or inherited.

    A private name of another object is ours when this very module gives it to something.
    """
    ours = {name for of, name, _ in names_used(tree) if of in {"", "self", "cls"}}
    for name, line in imports_of(tree):
        if name in PRIVATE_MODULES or (name.split(".")[0] not in OURS and "._" in f".{name}"):
            yield name, line
    for found in ast.walk(tree):
        if isinstance(found, ast.ImportFrom) and (found.module or "").split(".")[0] not in OURS:
            names = [alias.name for alias in found.names if f"{found.module}.{alias.name}" in PRIVATE_MODULES]
            names += [alias.name for alias in found.names if is_private(alias.name)]
            yield from ((f"{found.module}.{name}", found.lineno) for name in names)
        elif isinstance(found, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in found.bases}
            yield from ((base, found.lineno) for base in bases & PRIVATE_BASES)
    for of, name, line in names_used(tree):
        if (
            of not in {"", "self", "cls", "super()"}
            and name not in ours
            and f"{of}.{name}" not in PUBLIC_IN_SPITE
        ):
            yield f"{of}.{name}", line
    for made in tree.body:
        if isinstance(made, ast.ClassDef) and made.bases:
            inherited = inherited_private_names(module, made.name)
            used = (
                (of, name, line)
                for of, name, line in names_used(made)
                if of in {"", "self", "cls", "super()"}
            )
            yield from ((f"{made.name}.{name}", line) for _, name, line in used if name in inherited)


@pytest.mark.parametrize("package", [*PACKAGES, CLIENT])
def test_private_names_of_libraries_are_touched_behind_the_fence_only(package: str) -> None:
    faults = [
        f"{name_of(path)}:{line}: {name}"
        for path in sources_of(package)
        if not name_of(path).startswith(FENCE)
        for name, line in foreign_uses(tree_of(path), module_of(path))
    ]
    assert not faults, f"private to a library, so only {FENCE} may touch it: " + "; ".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "request._cache['version'] = 1",
        "x = getattr(request, '_match_info', None)",
        "setattr(writer, '_headers_buf', None)",
        "from aiohttp.http_parser import HttpRequestParser",
        "from aiohttp import client_proto",
        "from asyncio import sslproto",
        "import aiohttp._http_parser",
        "from msgspec import _core",
        "class ServerConnection(web.RequestHandler): pass",
        "class ServerConnection(Base):\n    def f(self): return self._waiter",
        "class ServerConnection(Base):\n    def _process_keepalive(self): pass",
        "class ServerConnection(Base):\n    def f(self): super()._drain_helper()",
        "class BodyResponse(Base):\n    _send_headers_immediately = False",
    ],
)
def test_fence_check_notices(source: str) -> None:
    assert list(foreign_uses(ast.parse(source), "web.internals.aiohttp_server"))


def test_fence_check_lets_names_of_our_own_be() -> None:
    source = "class ServerConnection(Base):\n    def f(self, other): self._own = other._own"
    assert not list(foreign_uses(ast.parse(source), "web.internals.aiohttp_server"))
