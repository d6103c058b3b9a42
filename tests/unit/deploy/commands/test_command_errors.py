"""What a command says of a file that it cannot use: a sentence, and no code of the API."""

from pathlib import Path

from ca.errors import Internal, NotFound
from ca.secretfiles import UnsafeSecretFile
from deploy.base.failures import line_of
from tests.cluster.harness import run_filestore


def test_bundle_that_others_can_read_is_told_with_what_to_do(tmp_path: Path) -> None:
    bundle = tmp_path / "cluster.bundle"
    bundle.write_bytes(b"x")
    bundle.chmod(0o644)
    arguments = ("coordinator", "init", "--id", "c2", "--data", str(tmp_path / "c2"), "--bundle", str(bundle))
    done = run_filestore(arguments, {})
    assert done.returncode == 1
    assert done.stderr.decode() == (
        f"filestore: {bundle} has mode 0644, which lets other users access it. Run: chmod 600 {bundle}\n"
    )


def test_only_what_the_api_answers_has_a_code() -> None:
    assert line_of(UnsafeSecretFile("a file: chmod 600 it")) == "a file: chmod 600 it"
    assert line_of(Internal("see the log")) == "internal: see the log"
    assert line_of(NotFound("No such\nfile.")) == "not_found: No such file."
