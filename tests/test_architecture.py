"""docs/architecture.md is true of the tree: each module is named in its index, and what it names exists."""

import re
from pathlib import Path

import pytest

from tests.test_tidy import committed_files

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([^`\n]+)`")


def index_of(package: str) -> list[str]:
    """What the part of the index about this package names, in its order."""
    found = re.search(rf"^### `{package}`\n(.*?)(?=^### )", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return NAMED.findall(found[1])


@pytest.mark.parametrize("package", ["ca", "coordinator", "node", "deploy"])
def test_index_names_every_module_once(package: str) -> None:
    inside = [
        path.relative_to(ROOT / package) for path in committed_files() if path.is_relative_to(ROOT / package)
    ]
    modules = [path for path in inside if path.suffix == ".py" and path.name != "__init__.py"]
    flat = [path.stem for path in modules if len(path.parts) == 1]
    directories = {f"{path.parent}/" for path in modules if len(path.parts) > 1}
    assert sorted(index_of(package)) == sorted([*flat, *directories])


def test_every_file_that_is_named_exists() -> None:
    files = {str(path.relative_to(ROOT)) for path in committed_files()}
    named = [name for name in NAMED.findall(PAGE) if re.fullmatch(r"[\w./]+\.(py|sql|md)", name)]
    assert len(named) > 50
    for name in named:
        assert any(file == name or file.endswith(f"/{name}") for file in files), name
