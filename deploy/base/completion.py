"""Names that a shell completes: of the files in the cluster. Shared by all commands that take one."""

import asyncio
import os
import shlex
from contextlib import suppress
from typing import Any, Final

import click

from deploy.base.connection import find_connection
from filestore_client import AsyncClient

NAMES_MAX: Final = 100
ANSWER_S: Final = 3.0  # who presses Tab does not wait longer


def complete_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return names of available files that begin so; none if the cluster does not tell in time.

    Nothing that goes wrong is shown: it would stand in the line that is being typed.
    """
    given: dict[str, Any] = context.params
    names: set[str] = set()

    async def work(client: AsyncClient) -> None:
        async with asyncio.timeout(ANSWER_S):
            async for file in client.files.list(filename=incomplete, status="available"):
                names.add(file.filename)
                if len(names) >= NAMES_MAX:
                    return

    with suppress(Exception):
        connection = find_connection(
            given.get("urls") or (), given.get("ca"), given.get("token_file"), given.get("context"), ANSWER_S
        )
        connection.run(work)
    printable = sorted(name for name in names if name.isprintable())
    is_bash = os.environ.get("_FILESTORE_COMPLETE", "").startswith("bash")  # other shells quote without help
    return [shlex.quote(name) if is_bash else name for name in printable]
