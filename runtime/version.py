"""Which version of the product this is: the command, /healthz and the metrics say the same."""

import importlib.metadata
from typing import Final

VERSION: Final = importlib.metadata.version("filestore")
