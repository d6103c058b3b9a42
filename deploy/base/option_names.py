"""Errors name the option that an operator gave, and not the field of the API that it became."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from ca.errors import InvalidRequest
from filestore_client.base.errors import InvalidRequest as RefusedRequest

F = TypeVar("F", bound=Callable[..., Any])

_FIELD: Final = re.compile(r"([a-z][a-z0-9_]*)(?:\[[^\]]*\])?: ")
_GIVEN: Final = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
# Parameters of commands that become a field of another name, in the order in which they are looked for.
_ALSO: Final = {
    "ip_address": ("address",),
    "member": ("members", "address"),
    "id": ("node_id", "coordinator_id"),
    "principal_id": ("principal",),
    "join_token": ("token_file", "token", "join_token_file"),
    "join": ("join_file",),
    "grace_seconds": ("grace",),
    "grace_s": ("grace",),
    "max_uses": ("uses_max",),
    "expires_at": ("expires",),
    "ttl_seconds": ("expires",),
}
_UNREACHABLE: Final = "other machines cannot connect to"


def names_options(command: F) -> F:
    """Let a command tell which of its options was wrong. Goes directly below the options."""

    @wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        with options_named():
            return command(*arguments, **options)

    return wrapped  # type: ignore[return-value]


@contextmanager
def options_named() -> Iterator[None]:
    """An invalid request that is raised within it begins with the option that was given, instead of a field.

    It is left as it is where the present command was given nothing that became this field.
    """
    try:
        yield
    except (InvalidRequest, RefusedRequest) as error:
        details = _with_option(error.details, click.get_current_context())
        if details == error.details:
            raise
        raise type(error)(details) from error


def naming(path: Path) -> str:
    """Return the option or variable that a path came from, as `--ca: `; "" for a default."""
    context = click.get_current_context(silent=True)
    if context is None:
        return ""
    for name, given in context.params.items():
        if not isinstance(given, str | Path) or Path(given) != path:
            continue
        parameter = next(each for each in context.command.params if each.name == name)
        source = context.get_parameter_source(name)
        if source is ParameterSource.ENVIRONMENT and isinstance(parameter.envvar, str):
            return f"{parameter.envvar}: "
        if source is ParameterSource.COMMANDLINE:
            return f"{_name_of(parameter)}: "
    return ""


def _with_option(details: str, context: click.Context) -> str:
    if (match := _FIELD.match(details)) is None:
        return details
    parameter = _given_for(match[1], context)
    if parameter is None:
        return details
    told = f"{_name_of(parameter)}: {details[match.end() :]}"
    if _UNREACHABLE not in details:
        return told
    if any(each.name == "development" for each in context.command.params):
        return f"{told.rstrip('.')}; a cluster on this machine alone is made with --development"
    return f"{told.rstrip('.')}; give one that they can reach"


def _given_for(field: str, context: click.Context) -> click.Parameter | None:
    """The parameter that was given and became this field."""
    option = f"--{field.replace('_', '-')}"
    given = [
        each
        for each in context.command.params
        if each.name is not None and context.get_parameter_source(each.name) in _GIVEN
    ]
    for name in (field, *_ALSO.get(field, ())):
        for each in given:
            if each.name == name or (name == field and option in each.opts):
                return each
    return None


def _name_of(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return parameter.opts[0] if parameter.opts[0].startswith("--") else parameter.opts[-1]
    return parameter.human_readable_name.upper()
