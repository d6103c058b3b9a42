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

PAGES = pages()


def test_every_command_has_a_section_with_its_options() -> None:
    text = "\n".join(PAGES.values())
    for words, command in commands(cli, ("filestore",)):
        if isinstance(command, click.Group):
            continue
        assert f"\n## {' '.join(words)}\n" in text
        for option in command.params:
            assert not isinstance(option, click.Option) or option.opts[0] in text


def test_every_metric_has_a_line() -> None:
    named = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            named |= set(re.findall(r'"(filestore_[a-z0-9_]+)"', path.read_text("utf-8")))
    assert len(named) > 70
    not_metrics = {"filestore_client"}
    assert named - not_metrics <= set(re.findall(r"filestore_\w+", PAGES["metrics.md"]))


def test_errors_and_exit_codes_are_listed() -> None:
    for kind in CATALOGUE:
        assert f"| {kind.status} | `{kind.code}` |" in PAGES["errors.md"]
    rows = re.findall(r"^\| \d+ \| .+ \|$", failures.__doc__ or "", re.MULTILINE)
    assert len(rows) == 9
    assert set(rows) <= set(PAGES["errors.md"].splitlines())


@pytest.mark.parametrize("name", sorted(PAGES))
def test_page_is_short(name: str) -> None:
    assert PAGES[name].count("\n") <= LINES_MAX
