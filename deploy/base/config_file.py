"""A file in TOML with the options of `coordinator run` or `node run`, for the units of systemd.

A key is the name of an option without its dashes, such as `log-level`. Options of the command line win.

Tested by tests/cluster/test_service_manager.py.
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from ca.errors import InvalidRequest
from deploy.base.own_files import UserPath
from runtime.logs import LEVELS, ReadLevel

SIZE_BYTES_MAX: Final = 64 * 1024
_LEVEL: Final = "log_level"


def process_options(command: Callable[..., None]) -> Callable[..., None]:
    """`--config` and `--log-level`, which every process that runs for long has."""
    decorate = click.option(
        "--log-level",
        type=click.Choice(LEVELS),
        default="info",
        show_default=True,
        help="Minimum log level. SIGHUP reads it again from the file of --config.",
    )
    config = click.option(
        "--config",
        type=UserPath(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_take,
        help="A TOML file with options of this command. Options on the command line override it.",
    )
    return decorate(config(command))


def level_reader() -> ReadLevel:
    """Return the function that reads the log level of the running command, now and later."""
    context = click.get_current_context()
    command, path, given = context.command, context.meta.get(__name__), context.params[_LEVEL]
    if path is None or context.get_parameter_source(_LEVEL) is ParameterSource.COMMANDLINE:
        return lambda: given

    def read() -> str:
        level = options_in(path, command).get(_LEVEL, "info")
        if level not in LEVELS:
            raise InvalidRequest(f"{path}: log-level: must be one of {', '.join(LEVELS)}.")
        return str(level)

    return read


def options_in(path: Path, command: click.Command) -> Mapping[str, Any]:
    """Read the options in a file, by parameter names. Raises InvalidRequest, also for unknown options."""
    try:
        with path.open("rb") as file:
            text = file.read(SIZE_BYTES_MAX)
        found = tomllib.loads(text.decode())
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # of TOML, and of UTF-8
        raise InvalidRequest(f"{path} is not valid TOML: {error}.") from error
    known = {
        option.opts[0].removeprefix("--"): option.name
        for option in command.params
        if isinstance(option, click.Option) and option.opts[0] != "--config"
    }
    if unknown := sorted(set(found) - set(known)):
        raise InvalidRequest(
            f"{path}: unknown option {unknown[0]!r}; the options are {', '.join(sorted(known))}."
        )
    if wrong := [key for key, value in found.items() if not isinstance(value, str | int | float)]:
        raise InvalidRequest(f"{path}: {wrong[0]}: must be a text or a number.")
    return {str(known[key]): value for key, value in found.items()}


def _take(context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.meta[__name__] = path
        try:
            context.default_map = dict(options_in(path, context.command))
        except InvalidRequest as error:  # as on the command line: no service manager restarts the process
            raise click.UsageError(error.details, context) from error
