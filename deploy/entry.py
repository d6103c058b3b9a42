"""The console script. Loading the product takes a moment, in which it can be interrupted like later."""

import sys


def main() -> None:
    """Never returns."""
    try:
        from deploy import cli  # within reach of what catches the interrupt
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    cli.main()
