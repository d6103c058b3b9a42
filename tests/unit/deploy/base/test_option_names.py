"""An error names the option that an operator gave, not the field that it became."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ca.errors import Conflict, FilestoreError, InvalidRequest
from ca.jointoken import new_join_token
from deploy.base.option_names import names_options
from deploy.commands.coordinator import coordinator
from deploy.commands.node import node
from filestore_client.base.errors import InvalidRequest as RefusedRequest


def told(group: click.Command, *arguments: str) -> str:
    """The details of the error that the command raises."""
    raised = CliRunner().invoke(group, arguments).exception
    assert isinstance(raised, FilestoreError)
    return raised.details


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--address", "files_1.lab.example"), "--address: a machine's name cannot contain an underscore"),
        (("--address", "127.0.0.1"), "--address: other machines cannot connect to a loopback, "),
        (("--address", "localhost"), "--address: other machines cannot connect to localhost, "),
        (("--address", "files.lab."), "--address: write the name without the dot at its end"),
        (("--member", "c1=*.lab.example"), "--member: a wildcard is not the name of a machine"),
        (("--member", "c1=127.0.0.1"), "--member: other machines cannot connect to a loopback, "),
        (("--member", "c2=10.0.0.2"), "--member: c1 is not among the members c2"),
        (("--address", "10.0.0.1", "--cluster", "A B"), "--cluster: "),
        (("--address", "10.0.0.1", "--write-quorum", "5"), "--write-quorum: 1 <= write quorum <= "),
        (("--address", "10.0.0.1:7441"), "--address: two of them have the same address and port"),
    ],
)
def test_new_coordinator_says_which_option_was_wrong(
    tmp_path: Path, given: tuple[str, ...], words: str
) -> None:
    details = told(coordinator, "init", "--id", "c1", "--data", str(tmp_path / "c1"), *given)
    assert details.startswith(words)
    assert ("is made with --development" in details) == ("cannot connect to" in details)
    assert not (tmp_path / "c1").exists()


def test_address_that_is_no_place_names_what_was_written(tmp_path: Path) -> None:
    details = told(coordinator, "init", "--id", "c1", "--data", str(tmp_path / "c1"), "--address", "a:b:c:d")
    assert details.startswith("--address: 'a:b:c:d' is not ADDRESS[:PEER_PORT[:API_PORT]]. ")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--address", "files_1.lab.example"), "--address: a machine's name cannot contain an underscore"),
        (("--address", "10.0.0.1", "--id", "A B"), "--id: "),
        (
            ("--address", "10.0.0.1", "--api-port", "7444"),
            "--peer-port: must differ from the port for clients, 7444.",
        ),
        (("--address", "10.0.0.1", "--token", "FST1.x"), "--token: expected a text of the form FST1."),
    ],
)
def test_new_node_says_which_option_was_wrong(tmp_path: Path, given: tuple[str, ...], words: str) -> None:
    usual = {
        "--id": "n1",
        "--data": str(tmp_path / "n1"),
        "--coordinator": "https://10.0.0.1:7441",
        "--token": new_join_token("0" * 64).text,
        "--peer-port": "7444",
    }
    asked = usual | dict(zip(given[::2], given[1::2], strict=True))
    arguments = [word for pair in asked.items() for word in pair]
    assert told(node, "join", *arguments).startswith(words)


@click.command()
@click.option("--expires", "expires_at")
@click.option("-o", "--output", envvar="TEST_OUTPUT")
@click.option("--address", default="10.0.0.1")
@click.argument("user_id", required=False)
@names_options
def command(expires_at: str | None, output: str | None, address: str, user_id: str | None) -> None:
    """Refuse what the test says."""
    raise click.get_current_context().obj


def renamed(error: Exception, *arguments: str, **environment: str) -> str:
    raised = CliRunner(env=environment).invoke(command, arguments, obj=error).exception
    assert type(raised) is type(error)
    return str(raised)


def test_only_what_was_given_is_named() -> None:
    refused = RefusedRequest("expires_at: must be at most 30 days from now.")
    assert renamed(refused, "--expires", "1h") == "--expires: must be at most 30 days from now."
    assert renamed(refused) == "expires_at: must be at most 30 days from now."
    assert renamed(InvalidRequest("output: x"), "-o", "1") == "--output: x"
    assert renamed(InvalidRequest("output: x"), TEST_OUTPUT="1") == "--output: x"
    assert renamed(InvalidRequest("user_id: x"), "A B") == "USER_ID: x"
    assert renamed(InvalidRequest("user_id: x")) == "user_id: x"
    assert renamed(InvalidRequest("ip_address: x"), "--address", "y") == "--address: x"
    assert renamed(InvalidRequest("ip_address: x")) == "ip_address: x"


def test_address_that_others_cannot_reach_is_told_with_what_to_do() -> None:
    details = renamed(
        InvalidRequest("ip_address: other machines cannot connect to a loopback address"), "--address", "::1"
    )
    assert details == (
        "--address: other machines cannot connect to a loopback address; give one that they can reach"
    )


@pytest.mark.parametrize("details", ["", "What was wrong.", "A: b", "https://x: y", "nothing_of_ours: x"])
def test_what_names_no_parameter_stays(details: str) -> None:
    assert renamed(InvalidRequest(details), "--expires", "1h") == details


def test_other_errors_stay() -> None:
    assert renamed(Conflict("output: x"), "-o", "1") == "output: x"
