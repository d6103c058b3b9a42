"""The version of the product. Apart, so that the command, /healthz and the metrics read the same one."""

import importlib.metadata
from typing import Final

VERSION: Final = importlib.metadata.version("filestore")
