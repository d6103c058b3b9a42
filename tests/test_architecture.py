"""The pages about the architecture are true: each module is in the index, and what is named exists."""

import re
from pathlib import Path

import pytest

from tests import rooms as rooms_of_the_product
from tests.sources import committed_files

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("architecture", "walks", "invariants", "modules")
PAGE = "\n".join((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in PARTS)
AFTERNOON_LINES_MAX = 4320
NAMED = re.compile(r"`([^`\n]+)`")


def index_of(package: str) -> list[str]:
    """What the part of the index about this package names, in its order."""
    found = re.search(rf"^### `{package}`\n(.*?)(?=^### )", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return NAMED.findall(found[1])


ONE_FILE_EACH = {  # folders of which the index names no module: there is one for each resource, or message
    Path(each)
    for each in (
        "coordinator/raft",
        "coordinator/machine",
        "metadata/protocol/commands",
        "api",
        "api/bodies",
        "deploy/commands",
    )
}


@pytest.mark.parametrize("package", rooms_of_the_product.PACKAGES)
def test_index_names_every_room_and_in_it_every_module(package: str) -> None:
    rooms: dict[Path, list[str]] = {}
    for path in committed_files():
        if path.is_relative_to(ROOT / package) and path.suffix == ".py":
            modules = rooms.setdefault(path.parent.relative_to(ROOT), [])
            if path.stem != "__init__" and path.parent.relative_to(ROOT) not in ONE_FILE_EACH:
                modules.append(path.stem)
    told: dict[Path, list[str]] = {Path(package): []}
    room = Path(package)
    for name in index_of(package):
        if name.endswith("/"):
            room = Path(package, name)
            assert told.setdefault(room, []) == [], f"{room} has two places in the index"
        else:
            told[room].append(name)
    assert {room: sorted(names) for room, names in told.items()} == {
        room: sorted(names) for room, names in rooms.items()
    }


def test_rooms_form_no_circle_and_none_is_too_full() -> None:
    assert rooms_of_the_product.main() == 0


def test_every_file_that_is_named_exists() -> None:
    files = {str(path.relative_to(ROOT)) for path in committed_files()}
    named = [name for name in NAMED.findall(PAGE) if re.fullmatch(r"[\w./]+\.(py|sql|md)", name)]
    assert len(named) > 50
    for name in named:
        assert any(file == name or file.endswith(f"/{name}") for file in files), name


def test_reading_list_takes_an_afternoon() -> None:
    part = PAGE[PAGE.index("## Read it in an afternoon") : PAGE.index("## A node joins")]
    names = re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE)
    assert len(names) == 17
    lines = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in names)
    assert lines <= AFTERNOON_LINES_MAX
