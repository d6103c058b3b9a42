"""`filestore login`, `logout`, `context` and `whoami`: which cluster, and who one is there.

Tested by tests/cluster/test_command_account.py.
"""

import http.client
import json
import re
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import uvloop

from ca.certificates import UntrustedCertificate, root_digest, trusted_root
from ca.errors import InvalidRequest, NotFound
from ca.jointoken import JoinToken
from ca.tls import first_contact_context
from deploy.base import contexts
from deploy.base.connection import Connection, connection_options, read_text
from deploy.base.failures import claims_of, explain_rejection
from deploy.base.option_names import names_options
from deploy.base.output import json_option, moment, print_json, print_record, print_records
from deploy.base.own_files import UserPath
from filestore_client import AsyncClient
from filestore_client.base.contexts import Context, read_contexts
from filestore_client.base.errors import Unauthorized, Unavailable, UntrustedServer
from filestore_client.base.records import User
from filestore_client.base.transport import base_url
from runtime.timestamps import rfc3339

CONNECT_TIMEOUT_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 256 << 10
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@click.command()
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--name", help="What the cluster is called here.  [default: the host of URL]")
@click.option(
    "--ca", type=UserPath(path_type=Path), help="The root certificate of the cluster, if you have it."
)
@click.option(
    "--fingerprint", metavar="SHA256", help="SHA-256 of the root certificate, as the operator gave it to you."
)
@click.option(
    "--join-token-file",
    type=UserPath(path_type=Path),
    help="A file that holds a join token, which names the fingerprint.",
)
@click.option(
    "--token-file", help="A file that holds a user token; - reads standard input.  [default: asked for]"
)
@names_options
def login(
    urls: tuple[str, ...],
    name: str | None,
    ca: Path | None,
    fingerprint: str | None,
    join_token_file: Path | None,
    token_file: str | None,
) -> None:
    """Sign in to a cluster, and use it from now on.

    URL is the address of a node, such as https://files.lab.example:7443. You can give several nodes of the
    cluster.

    The cluster is verified once, by the fingerprint of its root certificate: it is compared with the one that
    you give, or you are asked to confirm it. The token is stored in a file that only you can read; `filestore
    logout` removes it.
    """
    nodes = [base_url(url) for url in urls]
    root_pem = _pinned_root(nodes, ca, fingerprint, join_token_file)
    token = _token(token_file)

    async def work() -> User:
        async with AsyncClient(nodes, root_pem=root_pem, token=token) as client:
            try:
                return await client.whoami()
            except Unauthorized as error:
                named = f"in {token_file}" if token_file not in (None, "-") else "that you gave"
                raise explain_rejection(token, named, at_s=client.transport.time.now_s()) from error

    user = uvloop.run(work())
    context = name or _host_as_name(nodes[0])
    contexts.save_context(context, nodes, root_pem=root_pem, token=token)
    click.echo(
        f"Signed in as {user.user_id}. The context is {context}, and the token expires "
        f"{_end_of(user, token)}."
    )


@click.command()
@click.argument("name", required=False)
def logout(name: str | None) -> None:
    """Forget a cluster, and your token for it.

    NAME is what `filestore context ls` shows; without it, the cluster that is used at present.
    """
    context = name or read_contexts().current
    if not context:
        raise NotFound("You are signed in nowhere.")
    contexts.forget_context(context)
    click.echo(
        f"{context} is forgotten. The token stays valid until it expires; `filestore user revoke` "
        "revokes it before."
    )


@click.group()
def context() -> None:
    """The clusters that you are signed in to: ls, use."""


@context.command("ls")
@json_option
def list_contexts(as_json: bool) -> None:
    """List the clusters; * marks the one that is used."""
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
    print_records(rows, columns, as_json=as_json, empty="None. `filestore login URL` creates one.")


@context.command("use")
@click.argument("name")
def use_context(name: str) -> None:
    """Use another cluster from now on."""
    contexts.use_context(name)
    click.echo(f"{name} is used from now on.")


@click.command()
@json_option
@connection_options
def whoami(connection: Connection, as_json: bool) -> None:
    """Show your user name, and when your token ends."""
    user = connection.run(lambda client: client.whoami())
    if as_json:
        print_json(user)
        return
    print_record(user, as_json=False)
    if not user.token_expires_at:
        click.echo(f"The token expires {_end_of(user, connection.token())}.")


def _pinned_root(
    urls: list[str], ca: Path | None, fingerprint: str | None, join_token_file: Path | None
) -> str:
    """The root certificate of the cluster. Raises InvalidRequest, Unavailable, UntrustedServer."""
    if sum(each is not None for each in (ca, fingerprint, join_token_file)) > 1:
        raise click.UsageError("Give one of --ca, --fingerprint and --join-token-file.")
    if ca is not None:
        return read_text(ca, "the CA certificate")
    wanted = ""
    if join_token_file is not None:
        wanted = JoinToken.parse(read_text(join_token_file, "the join token")).ca_digest
    elif fingerprint is not None:
        wanted = fingerprint.replace(":", "").strip().lower()
        if not _DIGEST.fullmatch(wanted):
            raise click.UsageError("--fingerprint: expected 64 hexadecimal digits (SHA-256).")
    url, shown = _first_root(urls)
    try:
        found = root_digest(shown)
        if not wanted:
            _confirm(url, found)
        return trusted_root(shown, wanted or found)
    except UntrustedCertificate as error:
        if not wanted:
            raise Unavailable(f"{url} does not answer like a node of Filestore.") from error
        raise UntrustedServer(
            f"{url} does not belong to the expected cluster: its root certificate has the fingerprint "
            f"{found}."
        ) from error


def _confirm(url: str, fingerprint: str) -> None:
    """Ask the user to confirm. Raises click.UsageError without a terminal, UntrustedServer for a no."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"The root certificate of {url} has the fingerprint {fingerprint}. Compare it with the one "
            "from the operator, and give it as --fingerprint."
        )
    click.echo(f"The root certificate of {url} has the SHA-256 fingerprint\n\n    {fingerprint}\n", err=True)
    if not click.confirm("Is this the fingerprint from the operator?", err=True):
        raise UntrustedServer(f"{url}: its fingerprint was not confirmed. Nothing was stored.")


def _first_root(urls: list[str]) -> tuple[str, str]:
    """The first node that answers, and the root that it shows. Raises InvalidRequest, Unavailable."""
    failure: Unavailable | None = None
    for url in urls:
        try:
            return url, _unverified_root(url)
        except Unavailable as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _unverified_root(url: str) -> str:
    """Fetch the root certificate of an unverified server, only for comparison. No secret is sent."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        raise InvalidRequest(f"{url}: a cluster can be verified over https only. Give --ca.")
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
        raise Unavailable(f"{url} does not answer like a node of Filestore.") from error
    finally:
        connection.close()


def _token(token_file: str | None) -> str:
    """Read the token from a file, standard input or the terminal. Raises InvalidRequest, click.UsageError."""
    if token_file not in (None, "-"):
        token = read_text(Path(str(token_file)), "the token")
    elif token_file == "-":  # noqa: S105
        token = sys.stdin.readline().strip()
    elif sys.stdin.isatty():
        token = str(click.prompt("Token", hide_input=True, err=True)).strip()
    else:
        raise click.UsageError("--token-file: is required if there is no terminal to ask on.")
    if not token:
        raise InvalidRequest("The token is empty.")
    return token


def _host_as_name(url: str) -> str:
    """Return the default name of a context. An IPv6 address has characters that are not allowed in names."""
    return (urlsplit(url).hostname or "").replace(":", "-").strip("-") or "default"


def _end_of(user: User, token: str) -> str:
    return moment(user.token_expires_at or rfc3339(int(claims_of(token)[1] * 1000)))


def _user_of(context: Context) -> str:
    try:
        return claims_of(read_text(Path(context.token_file), "the token"))[0]
    except InvalidRequest:
        return ""
