"""`filestore api` and `filestore completion`: any operation of the API, and what a shell completes."""

import json
import sys
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class
from filestore_client import AsyncClient

from deploy.base.connection import Connection, connection_options

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
SHELLS: Final = ("bash", "zsh", "fish")
_ADVICE: Final = {
    "bash": "filestore completion bash > ~/.local/share/bash-completion/completions/filestore",
    "zsh": "filestore completion zsh > ~/.zfunc/_filestore, with fpath+=~/.zfunc before compinit in ~/.zshrc",
    "fish": "filestore completion fish > ~/.config/fish/completions/filestore.fish",
}


@click.command()
@click.argument("method", type=click.Choice(METHODS, case_sensitive=False))
@click.argument("path")
@click.option("--data", "-d", help="A JSON object to send; @FILE reads a file, @- standard input.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME:VALUE", help="A header to send.")
@click.option("--include", "-i", is_flag=True, help="Print the headers of the answer first.")
@connection_options
def api(
    connection: Connection, method: str, path: str, data: str | None, headers: tuple[str, ...], include: bool
) -> None:
    """Call any operation of the API, and print what it answers. PATH begins with /api/v1/ or goes below it.

    `/docs` on any node shows them all.
    """
    target = (
        path
        if path.startswith(("/api/", "/.well-known/", "/metrics", "/healthz", "/readyz"))
        else f"/api/v1/{path.lstrip('/')}"
    )
    body = None if data is None else _object(data)
    sent = dict(_header(header) for header in headers)

    async def work(client: AsyncClient) -> tuple[bytes, list[tuple[str, str]]]:
        answer, found = await client.transport.answer(method.upper(), target, body=body, headers=sent)
        return answer, list(found.items())

    answer, found = connection.run(work)
    if include:
        for name, value in found:
            click.echo(f"{name}: {value}")
        click.echo()
    sys.stdout.flush()
    sys.stdout.buffer.write(answer)
    if answer and sys.stdout.isatty() and not answer.endswith(b"\n"):
        click.echo()


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what SHELL needs to complete commands and options. Say where to put it on standard error."""
    from deploy.cli import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "filestore", "_FILESTORE_COMPLETE").source())
    if sys.stderr.isatty():
        click.echo(_ADVICE[shell], err=True)


def _object(data: str) -> dict[str, object]:
    """The JSON object. Raises click.UsageError, OSError."""
    if data == "@-":
        text = sys.stdin.read()
    elif data.startswith("@"):
        text = Path(data[1:]).read_text("utf-8")
    else:
        text = data
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--data: this is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.UsageError("--data: a JSON object is wanted.")
    return found


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition(":")
    if not separator or not name.strip():
        raise click.UsageError(f"--header: {text!r} is not NAME:VALUE.")
    return name.strip(), value.strip()
