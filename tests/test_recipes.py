"""The recipes of CONTRIBUTING.md fit the tree: each line finds its place, and what it writes is loaded.

`tests/cluster/test_used_recipes.py` uses what comes of them in a cluster.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.recipes import (
    PAGE,
    ROOT,
    NoSuchPlace,
    Step,
    carry_out,
    copied_tree,
    program_of,
    recipes,
    write_client,
)

RECIPES: Final = recipes((ROOT / PAGE).read_text("utf-8"))
TITLES: Final = ("A field of a kind of file", "A background job", "A command", "A metric with an alert")
LINES_MAX: Final = 25


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, in which all recipes were carried out."""
    copy = copied_tree(tmp_path_factory.mktemp("tree"))
    for steps in RECIPES.values():
        carry_out(steps, copy)
    write_client(copy)
    return copy


def run(tree: Path, *arguments: str) -> str:
    """What the command of the tree prints."""
    done = subprocess.run(
        [*program_of(tree), *arguments], cwd=tree, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_four_recipes_of_a_page_each() -> None:
    assert tuple(RECIPES) == TITLES
    assert all(0 < len(steps) <= LINES_MAX for steps in RECIPES.values())


def test_what_recipes_write_is_loaded_by_the_program(tree: Path) -> None:
    assert "Show how many files there are." in run(tree, "--help")
    assert "--os-name" in run(tree, "put", "--help")
    assert "coordinator.json" in run(tree, "coordinator", "run", "--help")


def test_alert_has_its_section(tree: Path) -> None:
    alerts = (tree / "deploy/prometheus/alerts.yml").read_text("utf-8")
    named = re.findall(r"- alert: (\w+)\n", alerts)
    assert "FilestoreManyBlobs" in named
    assert f"## {named[named.index('FilestoreManyBlobs')]}\n" in (tree / "docs/runbook-content.md").read_text(
        "utf-8"
    )


@pytest.mark.parametrize(
    "steps", [[Step("README.md", "no such line", False, "x")], [Step("README.md", "# … no such", True, "x")]]
)
def test_place_that_the_tree_does_not_have_is_told(steps: Sequence[Step], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Filestore\n")
    with pytest.raises(NoSuchPlace, match=r"README\.md: .*no such"):
        carry_out(steps, tmp_path)
