"""`filestore api` and `filestore completion`: any operation of the API, and what a shell completes.

Tested by tests/cluster/test_command_admin.py.
"""

import json
import re
import sys
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from deploy.base.connection import Connection, connection_options
from deploy.base.printed import printable_json
from filestore_client import AsyncClient

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
SHELLS: Final = ("bash", "zsh", "fish")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a field name, RFC 9110, section 5.6.2
_OUTSIDE_VALUES: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


@click.command()
@click.argument("method", metavar="METHOD", type=click.Choice(METHODS, case_sensitive=False))
@click.argument("path")
@click.option(
    "--data", "-d", metavar="JSON", help="An object to send; @FILE reads it from a file, @- standard input."
)
@click.option(
    "--header", "-H", "headers", multiple=True, metavar="NAME:VALUE", help="A header to send; once for each."
)
@click.option("--include", "-i", is_flag=True, help="Print the headers of the answer first.")
@connection_options
def api(
    connection: Connection, method: str, path: str, data: str | None, headers: tuple[str, ...], include: bool
) -> None:
    """Call any operation of the API, and print the response.

    METHOD is GET, POST and so on. PATH may omit the prefix /api/v1/. `/docs` on any node shows all
    operations.

    \b
    filestore api GET jobs
    filestore api POST buckets -d '{"name": "lab", "quota_bytes": 0}'
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
    if sys.stdout.isatty():
        click.echo(printable_json(answer.decode(errors="replace")).removesuffix("\n"), nl=bool(answer))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(answer)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the code with which a shell completes commands.

    Run the line for your shell once:

    \b
    filestore completion bash >> ~/.bashrc
    filestore completion zsh >> ~/.zshrc      (below the line with compinit)
    filestore completion fish > ~/.config/fish/completions/filestore.fish
    """
    from deploy.cli import cli

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "filestore", "_FILESTORE_COMPLETE").source())


def _object(data: str) -> dict[str, object]:
    """The JSON object. Raises click.UsageError, OSError."""
    text: str | bytes = data
    if data == "@-":
        text = sys.stdin.buffer.read()
    elif data.startswith("@"):
        text = Path(data[1:]).read_bytes()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # bytes that are no UTF-8 are a ValueError, too
        raise click.UsageError(f"--data: this is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise click.UsageError("--data: expected a JSON object.")
    return found


def _header(text: str) -> tuple[str, str]:
    name, separator, value = (part.strip() for part in text.partition(":"))
    if not separator or not _TOKEN.fullmatch(name) or _OUTSIDE_VALUES.search(value):
        raise click.UsageError(f"--header: {text!r} is not NAME:VALUE.")
    return name, value
