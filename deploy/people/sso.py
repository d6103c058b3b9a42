"""`filestore sso`: identity providers, with which people sign in.

Tested by tests/sso/test_command.py.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from deploy.base.connection import Connection, connection_options, read_text
from deploy.base.failures import NEEDS_ATTENTION
from deploy.base.options import Duration
from deploy.base.output import json_option, print_json, print_record, print_records
from deploy.base.own_files import UserPath
from filestore_client import AsyncClient
from filestore_client.base.records import Provider
from filestore_client.sign_in import ProviderName, ProviderStep

EVERYBODY: Final = "*"
_NAMES: Final[Mapping[str, Callable[[ProviderName], object]]] = {
    "name": lambda provider: provider.name,
    "label": lambda provider: provider.label,
}
_STEPS: Final[Mapping[str, Callable[[ProviderStep], object]]] = {
    "": lambda step: step.outcome,
    "step": lambda step: step.step,
    "details": lambda step: step.details,
}


@click.group()
def sso() -> None:
    """Identity providers to sign in with: set, show, test, rm.

    People then sign in to the console with a button, and with `filestore login URL`.
    """


@sso.command("set")
@click.argument("name")
@click.option("--issuer", help="The provider's address, as it writes it in its tokens.")
@click.option("--client-id", help="The client that you have registered at the provider.")
@click.option(
    "--secret-file",
    help="A file that holds the secret of the client; - reads standard input. Empty for none.",
)
@click.option("--command-client-id", help="The client of the command, if the provider wants another one.")
@click.option(
    "--command-secret-file", help="A file that holds the secret of that client; - reads standard input."
)
@click.option("--label", help="What people choose on the sign-in page.  [default: NAME]")
@click.option(
    "--allow-group", "allowed_groups", multiple=True, help="A group that may sign in, once for each."
)
@click.option("--allow-everybody", is_flag=True, help="Let everybody sign in whom the provider knows.")
@click.option("--admin-group", "admin_groups", multiple=True, help="A group of admins; '' for none.")
@click.option(
    "--take-group",
    "taken_groups",
    multiple=True,
    help="A group of the provider that becomes a group here, or a pattern such as 'lab-*'.  [default: all]",
)
@click.option("--groups-claim", help="The claim that lists the groups.  [default: groups]")
@click.option("--name-claim", help="The claim with the user's name.  [default: preferred_username]")
@click.option(
    "--scope", "scopes", multiple=True, help="A scope to request.  [default: openid, profile, email]"
)
@click.option("--token-life", type=Duration(least_s=1), help="How long a token is valid.  [default: 1h]")
@click.option(
    "--ca-file",
    type=UserPath(path_type=Path),
    help="The authority of the provider's certificate.  [default: those that the coordinators trust]",
)
@json_option
@connection_options
def set_provider(
    connection: Connection,
    name: str,
    issuer: str | None,
    client_id: str | None,
    secret_file: str | None,
    command_client_id: str | None,
    command_secret_file: str | None,
    label: str | None,
    allowed_groups: tuple[str, ...],
    admin_groups: tuple[str, ...],
    taken_groups: tuple[str, ...],
    groups_claim: str | None,
    name_claim: str | None,
    scopes: tuple[str, ...],
    token_life: int | None,
    ca_file: Path | None,
    *,
    allow_everybody: bool,
    as_json: bool,
) -> None:
    """Add a provider, or change one. Admins only.

    NAME is short, such as uni: its people become users uni:NAME. Options that are not given keep their
    values. The provider must know the redirect URIs that this prints.
    """
    if allow_everybody and allowed_groups:
        raise click.UsageError("Give one of --allow-everybody and --allow-group.")
    if secret_file == "-" and command_secret_file == "-":  # noqa: S105
        raise click.UsageError("Standard input holds one secret only.")
    fields = {
        "issuer": issuer,
        "client_id": client_id,
        "client_secret": _secret(secret_file),
        "command_client_id": command_client_id,
        "command_client_secret": _secret(command_secret_file),
        "label": label,
        "allowed_groups": [EVERYBODY] if allow_everybody else _given(allowed_groups),
        "admin_groups": _given(admin_groups),
        "taken_groups": _given(taken_groups),
        "groups_claim": groups_claim,
        "name_claim": name_claim,
        "scopes": _given(scopes),
        "token_seconds": token_life,
        "ca_pem": None if ca_file is None else read_text(ca_file, "the certificate") + "\n",
    }
    found = connection.run(lambda client: client.providers.put(name, **fields))
    _print(found, as_json=as_json)
    if not as_json:
        click.echo(f"`filestore sso test {name}` says whether it works.", err=True)


@sso.command()
@click.argument("name", required=False)
@json_option
@connection_options
def show(connection: Connection, name: str | None, as_json: bool) -> None:
    """Show a provider, or the names of all. Admins only.

    Secrets are not shown.
    """
    if name is not None:
        wanted = name
        _print(connection.run(lambda client: client.providers.get(wanted)), as_json=as_json)
        return
    empty = "No providers. `filestore sso set NAME` adds one."
    names = connection.run(lambda client: client.providers.names())
    print_records(names, _NAMES, as_json=as_json, empty=empty)


@sso.command()
@click.argument("name")
@json_option
@connection_options
def test(connection: Connection, name: str, as_json: bool) -> None:
    """Test a provider, step by step. Admins only.

    The leading coordinator asks the provider. Exit code 10 if a step fails.
    """
    steps = connection.run(lambda client: client.providers.test(name))
    print_records(steps, _STEPS, as_json=as_json, empty="")
    if any(step.outcome == "failed" for step in steps):
        sys.exit(NEEDS_ATTENTION)


@sso.command("rm")
@click.argument("name")
@connection_options
def remove(connection: Connection, name: str) -> None:
    """Remove a provider. Admins only.

    Its people stay users. Their tokens are not renewed any more, and expire.
    """

    async def work(client: AsyncClient) -> None:
        await client.providers.delete(name)

    connection.run(work)
    click.echo(
        f"{name} is removed. Tokens of its people expire within hours; filestore user revoke ends them."
    )


def _secret(file: str | None) -> str | None:
    """Return the secret in a file or on standard input; None if no file is given."""
    if file is None:
        return None
    if file == "-":
        return sys.stdin.readline().strip()
    return read_text(Path(file).expanduser(), "the secret")


def _given(names: Sequence[str]) -> list[str] | None:
    """None leaves them alone."""
    return [name for name in names if name] if names else None


def _print(provider: Provider, *, as_json: bool) -> None:
    if as_json:
        print_json(provider)
    else:
        print_record(provider, as_json=False)
