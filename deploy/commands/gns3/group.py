"""`filestore gns3`: login, logout, and the group that has the others.

Tested by tests/gns3/test_guide.py.
"""

import sys
from pathlib import Path
from urllib.parse import urlsplit

import click
import uvloop

from ca.errors import InvalidRequest
from deploy.base.connection import read_text
from deploy.base.option_names import names_options
from deploy.base.output import json_option, print_records
from deploy.base.own_files import UserPath
from deploy.base.printed import printable_name
from deploy.commands.gns3.backup import backup, watch
from deploy.commands.gns3.diff import diff
from deploy.commands.gns3.forget import forget
from deploy.commands.gns3.images import images
from deploy.commands.gns3.listing import ls
from deploy.commands.gns3.prune import prune
from deploy.commands.gns3.reset import reset
from deploy.commands.gns3.restore import restore, verify
from deploy.commands.gns3.status import status
from deploy.commands.gns3.versions import note, tag, versions
from deploy.gns3.identity import SERVER_ID, draw_server_id
from deploy.gns3.logins import ServerLogin, forget_login, read_logins, save_login
from deploy.gns3.server import Gns3Server, ServerAddress


@click.group()
def gns3() -> None:
    """Back up labs of GNS3 servers, and bring them back."""


@gns3.command()
@click.argument("url")
@click.option("--name", help="What the server is called here.  [default: the host of URL]")
@click.option(
    "--user",
    default="admin",
    show_default=True,
    help="GNS3 user to sign in as; for backups the role Auditor is enough.",
)
@click.option(
    "--password-file", help="A file that holds the password; - reads standard input.  [default: asked for]"
)
@click.option(
    "--compute-user",
    default="",
    metavar="NAME",
    help="User that may read its images: compute_username in [Server] of the server's configuration.",
)
@click.option("--compute-password-file", help="A file that holds its compute_password.  [default: asked for]")
@click.option(
    "--ca",
    type=UserPath(path_type=Path),
    help="Whom to trust for https.  [default: the system's authorities]",
)
@click.option(
    "--server-id",
    default="",
    metavar="ID",
    help="Continue the backups of this server, or `new` for a server that replaced another one at its URL."
    "  [default: by URL]",
)
@names_options
def login(
    url: str,
    name: str | None,
    user: str,
    password_file: str | None,
    compute_user: str,
    compute_password_file: str | None,
    ca: Path | None,
    server_id: str,
) -> None:
    """Sign in to a GNS3 server, once.

    URL is its address, such as http://10.0.0.9:3080. The first login at a URL creates an identity for the
    server, which `filestore gns3 servers` shows: each server's backups are its own. If the server moves, or
    is backed up from another machine too, give its identity with --server-id.

    Passwords are kept in files that only you can read, since GNS3's tokens end after a day; `filestore gns3
    logout` removes them.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise InvalidRequest(f"url: {url!r} is not the URL of a GNS3 server, such as http://HOST:3080.")
    if compute_password_file is not None and not compute_user:
        raise click.UsageError("--compute-password-file: --compute-user is required with it.")
    identity = _id_of(server_id)
    password = _password("--password-file", password_file)
    compute_password = _password("--compute-password-file", compute_password_file) if compute_user else ""
    ca_pem = read_text(ca, "the CA certificate") if ca is not None else ""
    server = name or parts.hostname.replace(":", "-").strip("-")
    address = ServerAddress(
        name=server,
        url=url.rstrip("/"),
        user=user,
        password=password,
        compute_user=compute_user,
        compute_password=compute_password,
        root_pem=ca_pem,
    )

    async def work() -> tuple[str, int, bool]:
        async with Gns3Server(address, deadline_s=0) as reached:
            count = len(await reached.projects())
            if compute_user:
                await reached.look_at_compute()
            return reached.version, count, bool(compute_user) or not reached.is_v3

    version, count, reads_images = uvloop.run(work())
    before = read_logins().servers.get(server)
    kept = ServerLogin(
        url=address.url, user=user, compute_user=compute_user, server_id=identity, reads_images=reads_images
    )
    saved = save_login(server, kept, password=password, compute_password=compute_password, ca_pem=ca_pem)
    if before is not None and server_id in ("", "new") and before.server_id != saved.server_id:
        _warn_of_another(server, before)
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        click.echo(f"filestore: warning: the password is sent to {parts.hostname} unencrypted", err=True)
    told = printable_name(version)
    click.echo(f"Signed in as {user} to {server}, GNS3 {told} with {count} projects that you can access.")
    if not reads_images:
        click.echo("Its images cannot be read. To read them, give --compute-user.")


def _warn_of_another(name: str, before: ServerLogin) -> None:
    """Say that a name stands for another server from now on."""
    click.echo(
        f"filestore: {name} is another server than before, and has separate backups. If it is the "
        f"server that was at {before.url}, sign in again with --server-id {before.server_id}",
        err=True,
    )


def _id_of(given: str) -> str:
    """The identity of a server that an option gives, "" for the one that is known. Raises InvalidRequest."""
    if given == "new":
        return draw_server_id()
    if given and not SERVER_ID.fullmatch(given):
        raise InvalidRequest("--server-id: expected 16 hexadecimal digits, see `filestore gns3 servers`.")
    return given


@gns3.command()
@click.argument("name")
def logout(name: str) -> None:
    """Forget a GNS3 server, and the passwords for it."""
    forget_login(name)
    click.echo(f"{name} is forgotten.")


@gns3.command()
@json_option
def servers(as_json: bool) -> None:
    """List the GNS3 servers that are known here."""
    rows = [
        {"name": name, "url": each.url, "user": each.user, "compute_user": each.compute_user}
        | {"server_id": each.server_id, "reads_images": each.reads_images}
        for name, each in sorted(read_logins().servers.items())
    ]
    columns = {
        "name": lambda row: row["name"],
        "url": lambda row: row["url"],
        "user": lambda row: row["user"],
        "id": lambda row: row["server_id"],
        "images": lambda row: "can be read" if row["reads_images"] else "",
    }
    print_records(rows, columns, as_json=as_json, empty="None. `filestore gns3 login URL` adds one.")


for _command in (ls, status, versions, diff, tag, note, backup, images, restore, reset, verify):
    gns3.add_command(_command)
for _command in (prune, watch, forget):
    gns3.add_command(_command)


def _password(option: str, path: str | None) -> str:
    """Read a password from a file, standard input or the terminal.

    Raises InvalidRequest, click.UsageError.
    """
    if path == "-":
        return sys.stdin.readline().rstrip("\n")
    if path is not None:
        return read_text(Path(path), "the password")
    if sys.stdin.isatty():
        asked = "Password of the compute" if option == "--compute-password-file" else "Password"
        return str(click.prompt(asked, hide_input=True, err=True))
    raise click.UsageError(f"{option}: is required if there is no terminal to ask on.")
