"""The Debian package: `python -m release.deb [ARCH]`, which `make deb` calls, writes it below dist/.

A virtual environment in /opt/filestore, which runs with the python3 of the Debian that this runs on; the
command, manual pages, completions, units, and the files in /etc/filestore. dpkg-deb packs what is laid out:
there is nothing to compile, so debhelper would have nothing to do.
"""

import gzip
import hashlib
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Final

from release import reference
from release.target import Target, target_of
from release.wheels import (
    DIST,
    ROOT,
    epoch,
    gather,
    install,
    install_for_platform,
    output,
    product_version,
    run,
)

HOME: Final = Path("opt/filestore")
PYTHON: Final = Path("/usr/bin/python3")
DOCUMENTS: Final = ("*.md", "docs/*.md", "docs/decisions/*.md", "docs/*.webp")
HISTORY: Final = """filestore ({version}) unstable; urgency=medium

  * The changes are in CHANGELOG.md, next to this file.

 -- {maintainer}  {date}
"""
COMMAND: Final = """#!/opt/filestore/bin/python3 -I
from deploy.entry import main

main()
"""


def main() -> None:
    """Build it, and say where it is."""
    if not PYTHON.exists() or not Path("/etc/debian_version").exists():
        raise SystemExit("make deb: this is no Debian with python3")
    target = target_of(sys.argv[1] if len(sys.argv) > 1 else "")
    if target.strip is None and not target.is_other:
        raise SystemExit("make deb: it needs strip (Debian: apt install binutils)")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "root")
        lay_out(root, Path(place, "wheels"), target)
        _tell("pack it")
        made = pack(root, target)
    print(f"{made}  {made.stat().st_size / 1e6:.1f} MB")


def lay_out(root: Path, wheels: Path, target: Target) -> None:
    """Every file of the package, below `root`."""
    _tell("make and fetch the wheels")
    gather(wheels, PYTHON, target.pip_options)
    _tell("install them and compile the environment")
    make_environment(root, wheels, target)
    _tell("write manual pages, documents and settings")
    make_documents(root, Path(sys.executable) if target.is_other else root / HOME / "bin/python3")
    copy_settings(root)
    write_control(root, target)


def _tell(step: str) -> None:
    print(f"make deb: {step}", flush=True)


def make_environment(root: Path, wheels: Path, target: Target) -> None:
    """The virtual environment, as if it had been made where it will lie."""
    home = root / HOME
    run(str(PYTHON), "-m", "venv", "--without-pip", "--symlinks", str(home))
    python = home / "bin" / "python3"
    version = output(str(python), "-c", "import sys; print('python%d.%d' % sys.version_info[:2])")
    library = home / "lib" / version / "site-packages"
    if target.is_other:
        install_for_platform(wheels, python, library, target.pip_options)
        remove(library / "bin")  # commands, which would be next to the interpreter otherwise
    else:
        install(wheels, python)
    for path in (home / "bin").iterdir():
        if not path.name.startswith("python"):
            path.unlink()
    for name in ("python", version):
        (home / "bin" / name).unlink(missing_ok=True)
    python.unlink()
    python.symlink_to(f"/usr/bin/{version}")
    command = home / "bin" / "filestore"
    command.write_text(COMMAND, encoding="ascii")
    command.chmod(0o755)
    (home / "pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\n", encoding="ascii"
    )
    for path in home.rglob(
        "*.dist-info/RECORD"
    ):  # it has sums of scripts that are gone, and pip is not there
        path.unlink()
    for name in ("include", "lib64", "share"):
        remove(home / name)
    remove(library / ".gitignore")
    if target.strip is not None:
        run(target.strip, "--strip-unneeded", *map(str, sorted(library.rglob("*.so*"))))
    _compile(python, root)
    link(root / "usr/bin/filestore", Path("/", HOME, "bin/filestore"))


def _compile(python: Path, root: Path) -> None:
    """Compile bytecode that ignores the times of the sources, as users of it may not write it."""
    library = next((root / HOME / "lib").iterdir())
    options = ("-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/")
    run(str(python), "-m", "compileall", *options, str(library))


def make_documents(root: Path, python: Path) -> None:
    """Manual pages and completions, by an interpreter that has the product, and what there is to read."""
    pages = root / "usr/share/man/man1"
    output(str(python), "-I", "-m", "deploy.manual", str(pages))
    for page in pages.iterdir():
        compress(page)
    command = str(root / HOME / "bin/filestore")
    for shell, place in (
        ("bash", "usr/share/bash-completion/completions/filestore"),
        ("zsh", "usr/share/zsh/vendor-completions/_filestore"),
        ("fish", "usr/share/fish/vendor_completions.d/filestore.fish"),
    ):
        write(root / place, output(str(python), command, "completion", shell) + "\n")
    documents = root / "usr/share/doc/filestore"
    for document in sorted(path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
        copy = documents / document.relative_to(ROOT)  # links between them lead there
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(document, copy)
    for name, text in reference.pages().items():
        write(documents / "docs" / "reference" / name, text)
    history = {
        "version": package_version(),
        "maintainer": re.findall(r"Maintainer: (.+)", (ROOT / "deploy/debian/control").read_text("utf-8"))[0],
        "date": format_datetime(datetime.fromtimestamp(epoch(), UTC)),
    }
    write(documents / "changelog", HISTORY.format_map(history))
    compress(documents / "changelog")
    shutil.copy(ROOT / "deploy/debian/copyright", documents / "copyright")
    shutil.copytree(ROOT / "deploy/prometheus", documents / "prometheus")
    shutil.copytree(ROOT / "deploy/grafana", documents / "grafana")


def copy_settings(root: Path) -> None:
    """Units, the user, directories, and the files that an operator edits."""
    systemd = ROOT / "deploy/systemd"
    for source, place in (
        ("filestore-coordinator.service", "lib/systemd/system/filestore-coordinator.service"),
        ("filestore-node.service", "lib/systemd/system/filestore-node.service"),
        ("sysusers.conf", "usr/lib/sysusers.d/filestore.conf"),
        ("tmpfiles.conf", "usr/lib/tmpfiles.d/filestore.conf"),
        ("coordinator.toml", "etc/filestore/coordinator.toml"),
        ("node.toml", "etc/filestore/node.toml"),
    ):
        write(root / place, (systemd / source).read_text(encoding="utf-8"))
    for unit in sorted((ROOT / "deploy/gns3/units").iterdir()):
        write(root / "lib/systemd/system" / unit.name, unit.read_text(encoding="utf-8"))
    overrides = (ROOT / "deploy/debian/lintian-overrides").read_text(encoding="utf-8")
    write(root / "usr/share/lintian/overrides/filestore", overrides)


def write_control(root: Path, target: Target) -> None:
    """Write the metadata of the package, and the scripts that dpkg runs."""
    debian = ROOT / "deploy/debian"
    fields = {
        "version": package_version(),
        "architecture": target.architecture,
        "python": (root / HOME / "bin/python3").readlink().name,
        "libc": platform.libc_ver()[1],
        "size": str(sum(path.stat().st_size for path in files_in(root)) // 1024),
    }
    control = (debian / "control").read_text(encoding="utf-8")
    write(root / "DEBIAN/control", control.format_map(fields))
    for name in ("postinst", "prerm", "postrm"):
        script = root / "DEBIAN" / name
        write(script, (debian / name).read_text(encoding="utf-8"))
        script.chmod(0o755)
    edited = sorted(f"/{path.relative_to(root)}" for path in (root / "etc").rglob("*") if path.is_file())
    write(root / "DEBIAN/conffiles", "\n".join(edited) + "\n")
    sums = [
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n"
        for path in files_in(root)
        if not path.is_relative_to(root / "etc")
    ]
    write(root / "DEBIAN/md5sums", "".join(sums))


def package_version() -> str:
    """The product's, with the Debian that it is for: each has another Python."""
    release = platform.freedesktop_os_release().get("VERSION_ID", "")
    return f"{product_version().replace('rc', '~rc')}+deb{release or platform.freedesktop_os_release()['ID']}"


def pack(root: Path, target: Target) -> Path:
    """Pack it, with root as the owner of everything and one time for all; return its path."""
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    DIST.mkdir(exist_ok=True)
    made = DIST / f"filestore_{package_version()}_{target.architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(made))
    return made


def files_in(root: Path) -> Iterator[Path]:
    """All that is installed as a file, in an order that is always the same."""
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.is_relative_to(root / "DEBIAN"):
            yield path


def write(path: Path, text: str) -> None:
    """Write a file, and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def compress(path: Path) -> None:
    """Put NAME.gz in its place."""
    packed = gzip.compress(path.read_bytes(), 9, mtime=0)
    path.with_name(f"{path.name}.gz").write_bytes(packed)
    path.unlink()


def link(path: Path, target: Path) -> None:
    """A symbolic link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def remove(path: Path) -> None:
    """Remove a file or directory, if it is there."""
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
