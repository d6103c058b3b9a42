"""The manual pages: one for each command, with all that its help says, and roff that has no fault."""

import shutil
import subprocess
from pathlib import Path

import click
import pytest

from deploy.cli import cli
from deploy.manual import PROGRAM, commands, page
from tests.cluster.test_command_error_codes import EXIT_CODES

COMMANDS = {" ".join(words): command for words, command in commands(cli, (PROGRAM,))}
PAGES = {name: page(tuple(name.split()), command) for name, command in COMMANDS.items()}


def shown(text: str) -> str:
    """The page as a reader sees it, with single spaces."""
    if shutil.which("groff") is None:
        pytest.skip("no groff command here")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=200n"],
        input=text.encode(),
        capture_output=True,
        check=True,
    )
    assert done.stderr == b""
    return " ".join(done.stdout.decode().split())


@pytest.mark.parametrize(
    "name", ["filestore", "filestore put", "filestore token rotate-key", "filestore api"]
)
def test_page_shows_every_option_with_its_help(name: str) -> None:
    text = shown(PAGES[name])
    for option in COMMANDS[name].params:
        if isinstance(option, click.Option):
            assert option.opts[0] in text
            assert " ".join((option.help or "").split()) in text


def test_no_page_has_a_fault(tmp_path: Path) -> None:
    """All in one run: a process for each would take half a minute."""
    assert len(PAGES) > 50
    text = shown("\n".join(PAGES.values()))
    for name in PAGES:
        assert f"{name.replace(' ', '-')}" in text


def test_page_of_the_program_names_exit_codes_and_commands() -> None:
    text = shown(PAGES[PROGRAM])
    for code in {0, 2, 10, 130, *EXIT_CODES.values()}:
        assert f" {code} " in text[text.index("EXIT STATUS") :]
    assert "filestore-bucket(1) Buckets, with owners and quotas" in text
    assert "filestore login URL sign in to a cluster, once filestore put FILE" in text


def test_what_roff_would_read_as_a_request_is_text() -> None:
    @click.command(help=".TH is no request\n\n'nor this, nor \\fB\n\n\b\n.nf\n  `x' -y")
    @click.option("-q", help=".so /etc/passwd")
    def odd() -> None:
        raise AssertionError

    text = shown(page((PROGRAM, "odd"), odd))
    for words in (".TH is no request", "'nor this, nor \\fB", ".nf `x' -y", "-q TEXT .so /etc/passwd"):
        assert words in text
