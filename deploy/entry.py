"""Where the command and every process begin. Loading the product takes a moment, in which it can be
interrupted like later. Nothing that is loaded is garbage: looking for some would take a fifth of that moment.
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
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
