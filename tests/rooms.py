"""The rooms of the product, as its imports show them: folders on floors, each above all that it imports.

    python -m tests.rooms

Prints every folder with the number of its modules, and fails when folders, or modules, import each other in a
circle, or when a folder has more modules than somebody finds their way in. Imports for types alone count.
"""

import ast
import graphlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.sources import tree_of

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = (
    "ca",
    "runtime",
    "web",
    "metadata",
    "api",
    "coordinator",
    "node",
    "deploy",
    "client/filestore_client",
)
MODULES_MAX: Final = 20
RESOURCES_MAX: Final = 30  # where each resource, or group of commands, has a file
OF_RESOURCES: Final = ("coordinator.machine", "api", "api.bodies", "deploy.commands")

Imports = Mapping[str, set[str]]


def modules() -> dict[str, Path]:
    """Every module of the product by its dotted name; a package by its own."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to((ROOT / package).parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules of the product that a source imports."""
    for found in ast.walk(tree_of(path)):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names if alias.name in known)
        elif isinstance(found, ast.ImportFrom) and found.module is not None:
            inner = [f"{found.module}.{alias.name}" for alias in found.names]
            yield from (name for name in inner if name in known)
            if found.module in known and not all(name in known for name in inner):
                yield found.module


def folder_of(module: str, known: Mapping[str, Path]) -> str:
    """The folder that a module lies in; a package is its own."""
    return module if known[module].name == "__init__.py" else module.rpartition(".")[0]


def folder_imports(imports: Imports, known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which folders each folder imports from."""
    folders: dict[str, set[str]] = {}
    for module, imported in imports.items():
        folder = folder_of(module, known)
        others = folders.setdefault(folder, set())
        others |= {folder_of(each, known) for each in imported} - {folder}
    return folders


def circle_in(imports: Imports) -> list[str]:
    """Some circle, as a path that comes back to its first; [] when there is none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return [str(each) for each in error.args[1]]
    return []


def floors_of(folders: Imports) -> list[list[str]]:
    """The folders from the ground up: each on the lowest floor above all that it imports."""
    heights: dict[str, int] = {}
    for folder in graphlib.TopologicalSorter(folders).static_order():
        heights[folder] = 1 + max((heights[each] for each in folders[folder]), default=-1)
    return [
        sorted(folder for folder, height in heights.items() if height == floor)
        for floor in range(max(heights.values()) + 1)
    ]


def sizes_of(known: Mapping[str, Path]) -> dict[str, int]:
    """How many modules lie in each folder."""
    sizes: dict[str, int] = {}
    for module, path in known.items():
        folder = folder_of(module, known)
        sizes[folder] = sizes.get(folder, 0) + (path.name != "__init__.py")
    return sizes


def faults_in(known: Mapping[str, Path], imports: Imports, folders: Imports) -> Iterator[str]:
    """What is not as it shall be, a sentence each."""
    for what, graph in (("modules", imports), ("folders", folders)):
        if circle := circle_in(graph):
            yield f"These {what} import each other in a circle: {' -> '.join(circle)}."
    for folder, size in sizes_of(known).items():
        bound = RESOURCES_MAX if folder in OF_RESOURCES else MODULES_MAX
        if size > bound:
            yield (
                f"{folder} has {size} modules, and at most {bound} find a place there: put a small one into"
                " the module that uses it, or about four that belong together into a folder of their own."
            )


def show(floors: Iterable[list[str]], sizes: Mapping[str, int]) -> None:
    """One line for each floor, the highest first."""
    for height, floor in reversed(list(enumerate(floors))):
        print(f"{height:>3}  {' | '.join(f'{folder} {sizes[folder]}' for folder in floor)}")


def main() -> int:
    """The exit code."""
    known = modules()
    imports = {name: set(imports_of(path, known)) - {name} for name, path in known.items()}
    folders = folder_imports(imports, known)
    if faults := list(faults_in(known, imports, folders)):
        print(*faults, sep="\n", file=sys.stderr)
        return 1
    show(floors_of(folders), sizes_of(known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
