"""The entry point of the command and every process. Apart from `cli`, whose import can be interrupted.

Loading the product takes a moment, in which it can be interrupted like later. The garbage collector is off
meanwhile: it would find nothing, and take a fifth of that moment.

Tested by tests/cluster/test_command.py.
"""

import gc
import sys


def main() -> None:
    """Never returns."""
    try:
        gc.disable()
        from deploy import cli  # within reach of what catches the interrupt

        gc.freeze()
        gc.enable()
        cli.main()
    except KeyboardInterrupt:
        _end()
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 makes this of one in `__set_name__`
            _end()
        raise


def _end() -> None:
    print("\ninterrupted", file=sys.stderr)  # noqa: T201  # behind the ^C of a terminal, as click has it
    sys.exit(130)


if __name__ == "__main__":
    main()
