"""The console's libraries are those that vendoring/parts.json pins, byte for byte."""

import shutil
from pathlib import Path

import pytest

from vendoring.__main__ import fetch_into
from vendoring.parts import PLACE, Part, committed_form, differences, read_packages


def test_committed_libraries_are_the_pinned_ones() -> None:
    assert not differences()


def test_every_library_has_its_licence_beside_it() -> None:
    for package in read_packages():
        licences = [part for part in package.files if part.name.startswith("LICENSE-")]
        assert len(licences) == 1, package.name
        assert "permission" in (PLACE / licences[0].name).read_text(encoding="utf-8").lower()


def test_changed_missing_and_added_files_are_told(tmp_path: Path) -> None:
    place = tmp_path / "vendor"
    shutil.copytree(PLACE, place)
    (place / "htm.js").write_bytes(b"export default 1;\n")
    (place / "tus.js").unlink()
    (place / "more.js").touch()
    assert differences(place) == [
        "tus.js is missing.",
        "more.js is of no package.",
        "htm.js has another content than vendoring/parts.json says.",
    ]


def test_text_that_is_not_there_once_is_an_error() -> None:
    part = Part(source="a.js", name="a.js", sha256="", replaced={'from"a"': 'from"./a.js"'})
    assert committed_form(part, b'import{b}from"a"') == b'import{b}from"./a.js"'
    with pytest.raises(ValueError, match="0 times"):
        committed_form(part, b"export{}")


def test_no_library_imports_by_a_bare_name_or_names_a_map() -> None:
    for path in PLACE.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert "sourceMappingURL" not in text
        assert 'from"preact' not in text


@pytest.mark.long
@pytest.mark.timeout(600)
def test_registry_has_what_is_committed(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("no npm here")
    fetch_into(tmp_path / "vendor")
    assert not differences(tmp_path / "vendor")
