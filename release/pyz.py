"""The command in one file: `python -m release.pyz`, which `make pyz` calls, writes it below dist/.

A zip archive that Python runs, made by shiv. When it is first run it unpacks itself below ~/.shiv, since some
of what it holds is no Python: it is for one version of Python, and one kind of machine, as its name says.
"""

import sys
import sysconfig
import tempfile
from pathlib import Path

from release.wheels import DIST, gather, product_version, run


def main() -> None:
    """Build it, and say where it is."""
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    platform = sysconfig.get_platform().replace("-", "_")
    made = DIST / f"filestore-{product_version()}-cp{version}-{platform}.pyz"
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        wheels = Path(place)
        gather(wheels, Path(sys.executable))
        shiv = (sys.executable, "-m", "shiv.cli", "--reproducible", "--compressed", "--extend-pythonpath")
        run(
            *shiv,
            *("--console-script", "filestore", "--output-file", str(made)),
            *("--python", f"/usr/bin/env python{sys.version_info.major}.{sys.version_info.minor}"),
            *("--no-index", "-f", str(wheels), "--quiet", "filestore"),
        )
    print(f"{made}  {made.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
