"""`python -m tests.sim`: see `tests.sim.run`."""

import sys

from tests.sim.run import main

if __name__ == "__main__":
    sys.exit(main())
