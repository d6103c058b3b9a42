"""`filestore login`, `logout`, `context` and `whoami`: which cluster, and who one is there."""

import http.client
import json
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import uvloop
from filestore_client import AsyncClient
from filestore_client.errors import Unavailable
from filestore_client.records import User
from filestore_client.transport import base_url

from ca.certificates import UntrustedCertificate, root_digest, trusted_root
from ca.errors import InvalidRequest
from ca.jointoken import JoinToken
from ca.tls import first_contact_context
from deploy.base.connection import Connection, connection_options, read_text
from deploy.base.contexts import (
    Context,
    Contexts,
    forget_context,
    read_contexts,
    save_context,
    write_contexts,
)
from deploy.base.failures import claims_of
from deploy.base.output import json_option, moment, print_json, print_record, print_records

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 256 << 10
_DIGEST_CHARS: Final = 64


@click.command()
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--name", help="What the context is called.  [default: the host]")
@click.option(
    "--ca", type=click.Path(path_type=Path), help="The root certificate of the cluster, if you have it."
)
@click.option("--fingerprint", help="The SHA-256 of the root certificate, as the operator has told it.")
@click.option(
    "--join-token-file", type=click.Path(path_type=Path), help="A join token, which names the fingerprint."
)
@click.option(
    "--token-file", help="A file that holds a user token; - reads standard input.  [default: asked for]"
)
def login(
    urls: tuple[str, ...],
    name: str | None,
    ca: Path | None,
    fingerprint: str | None,
    join_token_file: Path | None,
    token_file: str | None,
) -> None:
    """Sign in to the cluster at URL, and use it from now on. Several URLs are nodes of one cluster.

    The cluster is recognised by its root certificate: its fingerprint is compared or asked for, once.
    The token is kept in a file that only you can read.
    """
    nodes = [base_url(url) for url in urls]
    root_pem = _pinned_root(nodes[0], ca, fingerprint, join_token_file)
    token = _token(token_file)

    async def work() -> User:
        async with AsyncClient(nodes, root_pem=root_pem, token=token) as client:
            return await client.whoami()

    user = uvloop.run(work())
    context = name or urlsplit(nodes[0]).hostname or "default"
    save_context(context.replace(":", "-"), nodes, root_pem=root_pem, token=token)
    click.echo(
        f"Signed in as {user.user_id}; the context is {context}, the token ends {_end_of(user, token)}."
    )


@click.command()
@click.argument("name", required=False)
def logout(name: str | None) -> None:
    """Forget a context, its token and its root certificate.  [default: the current one]"""
    context = name or read_contexts().current
    if not context:
        raise InvalidRequest("You are signed in nowhere.")
    forget_context(context)
    click.echo(
        f"{context} is forgotten. The token lives until its end; `filestore user revoke` ends it before."
    )


@click.group()
def context() -> None:
    """The clusters that you are signed in to."""


@context.command("ls")
@json_option
def list_contexts(as_json: bool) -> None:
    """List them; * marks the current one."""
    known = read_contexts()
    rows = [
        {"name": name, "current": name == known.current, "urls": each.urls, "user": _user_of(each)}
        for name, each in sorted(known.contexts.items())
    ]
    columns = {
        "": lambda row: "*" if row["current"] else "",
        "name": lambda row: row["name"],
        "user": lambda row: row["user"],
        "urls": lambda row: row["urls"],
    }
    print_records(rows, columns, as_json=as_json, empty="None. `filestore login URL` makes one.")


@context.command("use")
@click.argument("name")
def use_context(name: str) -> None:
    """Make one the current one."""
    known = read_contexts()
    known.find(name)
    write_contexts(Contexts(current=name, contexts=known.contexts))
    click.echo(f"{name} is used from now on.")


@click.command()
@json_option
@connection_options
def whoami(connection: Connection, as_json: bool) -> None:
    """Show who you are, and when your token ends."""
    user = connection.run(lambda client: client.whoami())
    if as_json:
        print_json(user)
        return
    print_record(user, as_json=False)
    if not user.token_expires_at:
        click.echo(f"The token ends {_end_of(user, connection.token())}.")


def _pinned_root(url: str, ca: Path | None, fingerprint: str | None, join_token_file: Path | None) -> str:
    """The root certificate of the cluster. Raises InvalidRequest, Unavailable, UntrustedCertificate."""
    if sum(each is not None for each in (ca, fingerprint, join_token_file)) > 1:
        raise click.UsageError("Give one of --ca, --fingerprint and --join-token-file.")
    if ca is not None:
        return read_text(ca, "the CA certificate")
    shown = _unverified_root(url)
    if join_token_file is not None:
        wanted = JoinToken.parse(read_text(join_token_file, "the join token")).ca_digest
    elif fingerprint is not None:
        wanted = fingerprint.replace(":", "").strip().lower()
        if len(wanted) != _DIGEST_CHARS:
            raise InvalidRequest("--fingerprint: 64 hexadecimal digits are wanted, a SHA-256.")
    else:
        wanted = root_digest(shown)
        _confirm(url, wanted)
    try:
        return trusted_root(shown, wanted)
    except UntrustedCertificate as error:
        raise UntrustedCertificate(
            f"{url} is another cluster than the one meant: its root has the fingerprint {root_digest(shown)}."
        ) from error


def _confirm(url: str, fingerprint: str) -> None:
    """Never silently. Raises InvalidRequest where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise InvalidRequest(
            f"The root certificate of {url} has the fingerprint {fingerprint}. Compare it with what the"
            " operator tells, and give it as --fingerprint."
        )
    click.echo(f"The root certificate of {url} has the SHA-256 fingerprint\n\n    {fingerprint}\n", err=True)
    click.confirm("Is it the one that the operator has told you?", abort=True, err=True)


def _unverified_root(url: str) -> str:
    """What a server that nobody has verified says is its root: to be compared, no secret is sent."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        raise InvalidRequest(f"{url}: a cluster is recognised over https only; give --ca.")
    connection = http.client.HTTPSConnection(
        parts.hostname or "", parts.port or 443, timeout=CONNECT_TIMEOUT_S, context=first_contact_context()
    )
    try:
        connection.request("GET", "/api/v1/cluster/ca")
        response = connection.getresponse()
        answer = json.loads(response.read(ANSWER_BYTES_MAX))
        return str(answer["ca_cert"])
    except OSError as error:
        raise Unavailable(f"{url}: {error.strerror or error}.") from error
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"{url} does not answer as a node of Filestore does.") from error
    finally:
        connection.close()


def _token(token_file: str | None) -> str:
    if token_file == "-":  # noqa: S105
        return sys.stdin.readline().strip()
    if token_file is not None:
        return read_text(Path(token_file), "the token")
    if not sys.stdin.isatty():
        raise click.UsageError("--token-file: is wanted where nobody can be asked.")
    return str(click.prompt("Token", hide_input=True, err=True)).strip()


def _end_of(user: User, token: str) -> str:
    from coordinator.model.timestamps import rfc3339

    return moment(user.token_expires_at or rfc3339(int(claims_of(token)[1] * 1000)))


def _user_of(context: Context) -> str:
    try:
        return claims_of(read_text(Path(context.token_file), "the token"))[0]
    except InvalidRequest:
        return ""
