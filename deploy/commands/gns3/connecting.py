"""The common parts of `filestore gns3` commands: choosing a server, and a run with it and the store.

Tested by tests/gns3/test_backup.py.
"""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import click

from ca.errors import Conflict, NotFound
from deploy.base.connection import Connection, read_text
from deploy.base.failures import FAILURES, Failure
from deploy.base.lookup import find_bucket
from deploy.base.own_files import UserPath
from deploy.base.printed import printable_name
from deploy.gns3.identity import ServerIdentity
from deploy.gns3.local.projects import StoppedServer
from deploy.gns3.logins import network_cards, read_logins
from deploy.gns3.records import LabProject
from deploy.gns3.server import Gns3Server, ServerAddress
from filestore_client import AsyncClient

REFUSED_S_MAX: Final = 5.0
T = TypeVar("T")
Unreached = Callable[[Failure, ServerIdentity, AsyncClient], Awaitable[None]]

server_option = click.option(
    "--server",
    default="",
    metavar="NAME",
    help="A GNS3 server that you are signed in to.  [default: the only one]",
)
local_option = click.option(
    "--local",
    # Whether it is readable is not asked: access(2) does not know capabilities.
    type=UserPath(exists=True, file_okay=False, readable=False, path_type=Path),
    metavar="DIRECTORY",
    help="Whole folders, on the machine of the server: its folder of projects, such as /opt/gns3/projects.",
)
configuration_option = click.option(
    "--config",
    "configuration",
    type=UserPath(exists=True, dir_okay=False, readable=False, path_type=Path),
    metavar="FILE",
    help="The server itself too: its gns3_server.conf, database, symbols and so on, on its machine.",
)
bucket_option = click.option(
    "--bucket", default="", help="Store in this bucket, by its name or its id.  [default: the default bucket]"
)


def address_of(name: str) -> ServerAddress:
    """A server with its secrets; "" is the only one. Raises NotFound, InvalidRequest, Conflict."""
    found, login = read_logins().find(name)
    if login.is_cloned(network_cards()):
        raise Conflict(
            f"The login of {found} was made on another machine, and this one may be a clone of it. "
            f"Sign in here too, which starts separate backups: filestore gns3 login {login.url} --name "
            f"{found}. If it is the same server, continue its backups with --server-id "
            f"{login.server_id}"
        )
    return ServerAddress(
        name=found,
        url=login.url,
        server_id=login.server_id,
        user=login.user,
        password=_read(login.password_file, "the password"),
        compute_user=login.compute_user,
        compute_password=_read(login.compute_password_file, "the password of the compute"),
        root_pem=_read(login.ca, "the CA certificate"),
    )


async def _give_up(error: Failure, server: ServerIdentity, client: AsyncClient) -> None:
    """Let a command end whose server is not reached."""
    del server, client
    raise error


def run_with_server(
    connection: Connection,
    server: str,
    work: Callable[[Gns3Server, AsyncClient], Awaitable[T]],
    *,
    unreached: Unreached = _give_up,
    local: Path | None = None,
) -> T:
    """Run one piece of work with a server and the store.

    With `local`, the folder of projects on this machine, the server need not run.

    If the server is not reached, `unreached` is awaited with the error, the server and the client. It raises
    the error, or returns to try again. SIGTERM ends all this as Ctrl-C does: what is begun is undone.
    """
    address = address_of(server)

    async def session(client: AsyncClient) -> T:
        with ended_by_sigterm():
            async with _reaching(address, connection, client, unreached, local) as reached:
                return await work(reached, client)

    return connection.run(session)


@asynccontextmanager
async def _reaching(
    address: ServerAddress,
    connection: Connection,
    client: AsyncClient,
    unreached: Unreached,
    local: Path | None,
) -> AsyncIterator[Gns3Server]:
    async with AsyncExitStack() as stack:
        while True:
            if local is not None and await asyncio.to_thread(_is_stopped, address):
                yield StoppedServer(address, local)
                return
            server = Gns3Server(address, deadline_s=connection.deadline_s)
            try:
                await stack.enter_async_context(server)
            except FAILURES as error:
                await unreached(error, address.identity, client)
            else:
                break
        yield server


def _is_stopped(address: ServerAddress) -> bool:
    """Whether this machine rejects connections to the server's port. Blocks."""
    parts = urlsplit(address.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=REFUSED_S_MAX):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within it SIGTERM cancels the task that runs. Raises click.Abort once it is cancelled."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    except asyncio.CancelledError:
        raise click.Abort from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def bucket_id_of(client: AsyncClient, bucket: str) -> str:
    """The id of a bucket by its name or id; "" for none."""
    return (await find_bucket(client, bucket)).bucket_id if bucket else ""


def chosen_projects(projects: list[LabProject], named: tuple[str, ...]) -> list[LabProject]:
    """Return the projects with these names or ids, and all projects of one name. Raises NotFound."""
    chosen: dict[str, LabProject] = {}
    for wanted in named:
        found = [each for each in projects if wanted in (each.project_id, each.name)]
        if not found:
            raise NotFound(f"The GNS3 server has no project {printable_name(wanted)!r} that you can access.")
        chosen |= {each.project_id: each for each in found}
    return list(chosen.values())


def _read(path: str, what: str) -> str:
    return read_text(Path(path), what) if path else ""
