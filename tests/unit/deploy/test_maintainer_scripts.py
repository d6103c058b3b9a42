"""What root runs when the package is installed follows no link that the user of the service has planted."""

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.sources import ROOT

USER = "nobody"  # stands for `filestore`


def configure(directory: Path, data: Path) -> subprocess.CompletedProcess[str]:
    """Run postinst where there is no systemd-tmpfiles, with another data directory and another user."""
    tools = directory / "tools"
    tools.mkdir()
    for name in ("sh", "install", "mkdir", "setpriv"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "systemd-sysusers").symlink_to(str(shutil.which("true")))
    group = f"{pwd.getpwnam(USER).pw_gid}"
    script = (ROOT / "deploy" / "debian" / "postinst").read_text()
    script = script.replace("-g filestore", f"-g {group}").replace("--regid=filestore", f"--regid={group}")
    script = script.replace("-o filestore", f"-o {USER}").replace("--reuid=filestore", f"--reuid={USER}")
    script = script.replace("/var/lib/filestore", str(data)).replace("/run/systemd/system", "/nowhere")
    return subprocess.run(
        [str(tools / "sh"), "-c", script, "postinst", "configure"],
        env={"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root gives directories to others")
    base = Path(tempfile.gettempdir())
    for directory in (tmp_path, *tmp_path.parents):
        if directory != base and directory.is_relative_to(base):
            directory.chmod(0o755)  # pytest makes them for root alone
    return tmp_path / "data"


def test_data_directories_belong_to_the_user(tmp_path: Path, data: Path) -> None:
    done = configure(tmp_path, data)
    assert (done.returncode, done.stderr) == (0, "")
    for path, mode in ((data, 0o750), (data / "coordinator", 0o700), (data / "node", 0o700)):
        facts = path.stat()
        assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (pwd.getpwnam(USER).pw_uid, mode)


def test_link_in_the_place_of_a_data_directory_gives_nothing_away(tmp_path: Path, data: Path) -> None:
    data.mkdir()
    os.chown(data, pwd.getpwnam(USER).pw_uid, -1)
    system = tmp_path / "etc"
    system.mkdir(0o755)
    (data / "node").symlink_to(system)
    configure(tmp_path, data)
    facts = system.stat()
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (0, 0o755)
