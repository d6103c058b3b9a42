"""The reference pages that `make docs` makes: they are complete, and none is too long to read."""

import re

import click
import pytest

from ca.errors import CATALOGUE
from deploy.base import failures
from deploy.cli import cli
from deploy.manual import commands
from release.reference import pages
from tests.documents import LINES_MAX, ROOT
from tests.rooms import PACKAGES


@pytest.fixture(scope="module", name="made")
def made_pages() -> dict[str, str]:
    """Made once, and only where these tests run: a second of a processor."""
    return pages()


def test_every_command_has_a_section_with_its_options(made: dict[str, str]) -> None:
    text = "\n".join(made.values())
    for words, command in commands(cli, ("filestore",)):
        if isinstance(command, click.Group):
            continue
        assert f"\n## {' '.join(words)}\n" in text
        for option in command.params:
            assert not isinstance(option, click.Option) or option.opts[0] in text


def test_every_metric_has_a_line(made: dict[str, str]) -> None:
    named = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            named |= set(re.findall(r'"(filestore_[a-z0-9_]+)"', path.read_text("utf-8")))
    assert len(named) > 70
    not_metrics = {"filestore_client"}
    assert named - not_metrics <= set(re.findall(r"filestore_\w+", made["metrics.md"]))


def test_errors_and_exit_codes_are_listed(made: dict[str, str]) -> None:
    for kind in CATALOGUE:
        assert f"| {kind.status} | `{kind.code}` |" in made["errors.md"]
    rows = re.findall(r"^\| \d+ \| .+ \|$", failures.__doc__ or "", re.MULTILINE)
    assert len(rows) == 9
    assert set(rows) <= set(made["errors.md"].splitlines())


def test_pages_are_short(made: dict[str, str]) -> None:
    assert [name for name, text in made.items() if text.count("\n") > LINES_MAX] == []
