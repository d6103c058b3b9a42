"""No command wants a secret among its arguments, which other users of the machine can read."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from deploy.cli import cli
from tests.cluster.harness import FILESTORE

WARNING = b"filestore: warning: other users of this machine can read"
KEPT = {"node join --token", "setup --join"}  # for scripts that have them; both warn
NO_SECRETS = {"sso set --token-life"}  # a duration


def options(command: click.Command, name: str = "") -> Iterator[str]:
    """Every option with a value, behind the name of its command."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from options(found, f"{name} {each}".strip())
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag:
            yield f"{name} {option.opts[0]}"


def test_options_for_secrets_take_files() -> None:
    secret = re.compile(r".* --(?!.*file$).*(token|password|secret|join|passphrase|credential)\b.*")
    assert {each for each in options(cli) if secret.fullmatch(each)} == KEPT | NO_SECRETS


def run(directory: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [FILESTORE, *arguments, "--data", str(directory / "data"), "--address", "127.0.0.1"],
        env={name: value for name, value in os.environ.items() if not name.startswith("FILESTORE_")},
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "warns"),
    [
        (("setup", "--name", "m1", "--join", "FSS1.x"), b"", True),
        (("setup", "--join", "--name", "m1"), b"FSS1.x\n", False),
        (("setup", "--name", "m1", "--join"), b"FSS1.x\n", False),
        (("setup", "--name", "m1", "--join", "-"), b"FSS1.x\n", False),
        (
            ("node", "join", "--id", "n1", "--coordinator", "https://127.0.0.1:1", "--token", "FST1.x"),
            b"",
            True,
        ),
        (
            ("node", "join", "--id", "n1", "--coordinator", "https://127.0.0.1:1", "--token-file", "-"),
            b"FST1.x\n",
            False,
        ),
    ],
)
def test_secret_comes_by_standard_input_and_as_an_argument_it_warns(
    tmp_path: Path, arguments: tuple[str, ...], stdin: bytes, warns: bool
) -> None:
    done = run(tmp_path, *arguments, stdin=stdin)
    assert done.returncode == 2
    assert b": expected a text " in done.stderr
    assert (WARNING in done.stderr) is warns
    assert not (tmp_path / "data").exists()
