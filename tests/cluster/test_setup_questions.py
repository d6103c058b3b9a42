"""What `filestore setup` asks on a terminal, and what it makes of the answers."""

import shlex

import pytest

from tests.cluster.harness import FILESTORE
from tests.cluster.set_up_machines import LINE, Machine, environment, machines, run_healthy
from tests.cluster.terminal import Terminal

__all__ = ["machines"]  # a fixture
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TEXT = "The text that the first machine printed, or Enter for a new cluster: "
NAME = "The name of the cluster [filestore]: "
ADDRESS = "The address or DNS name at which others reach this machine"


def asked(machine: Machine, *arguments: str, without: str = "--address") -> Terminal:
    """A setup on a terminal, with all of the machine's options but one."""
    at = machine.options.index(without)
    options = machine.options[:at] + machine.options[at + 2 :]
    return Terminal([FILESTORE, "setup", *options, *arguments], environment())


def nothing_was_made(machine: Machine) -> bool:
    return not machine.data.exists()


def test_first_machine_is_asked_for_the_cluster_and_its_address(machines: list[Machine]) -> None:
    with asked(machines[0], "--development") as terminal:
        terminal.until(TEXT)
        terminal.type("")
        terminal.until(NAME)
        terminal.type("lab2")
        terminal.until(ADDRESS)
        terminal.type("127.0.0.1")
        assert terminal.end() == 0, terminal.shown
    assert "This machine is coordinator m1 and node m1 of the cluster lab2" in terminal.shown
    assert len(LINE.findall(terminal.shown)) == 2


def test_what_was_given_is_not_asked_for(machines: list[Machine]) -> None:
    with asked(machines[0], "--development", "--cluster", "lab", "--address", "127.0.0.1") as terminal:
        terminal.until(TEXT)
        terminal.type("")
        assert terminal.end() == 0, terminal.shown
    assert NAME not in terminal.shown
    assert ADDRESS not in terminal.shown


def test_other_machine_is_asked_for_the_text_alone_and_does_not_show_it(machines: list[Machine]) -> None:
    first, second, _ = machines
    text, _ = first.first("--replicas", "1")
    run_healthy(first)
    with asked(second) as terminal:
        terminal.until(TEXT)
        terminal.type(f"  {text} ")
        assert terminal.end() == 0, terminal.shown
    assert "Others reach this machine at 127.0.0.1. If that is wrong, give --address." in terminal.shown
    assert "This machine is coordinator m2 and node m2 of the cluster lab" in terminal.shown
    assert text.split(".")[2] not in terminal.shown
    assert NAME not in terminal.shown
    with asked(second) as terminal:  # all is there: nothing is asked
        assert terminal.end() == 0, terminal.shown
    assert TEXT not in terminal.shown


def test_name_that_can_be_none_is_asked_again_by_nobody_and_makes_nothing(machines: list[Machine]) -> None:
    with asked(machines[0], "--development") as terminal:
        terminal.until(TEXT)
        terminal.type("")
        terminal.until(NAME)
        terminal.type("No Name")
        terminal.until(ADDRESS)
        terminal.type("127.0.0.1")
        assert terminal.end() == 2
    assert "cluster" in terminal.shown.splitlines()[-1]
    assert not (machines[0].data / "coordinator" / "coordinator.json").exists()


def test_nothing_is_asked_where_the_output_goes_elsewhere(machines: list[Machine]) -> None:
    """Ansible has a terminal for standard input, at which nobody sits."""
    command = shlex.join([FILESTORE, "setup", *machines[0].options, "--development", "--cluster", "lab"])
    with Terminal(["sh", "-c", f"{command} | cat"], environment()) as terminal:
        assert terminal.end() == 0
    assert TEXT not in terminal.shown
    assert "This machine is coordinator m1 and node m1 of the cluster lab" in terminal.shown


@pytest.mark.parametrize("answer", ["lab", "FSS1.", "filestore setup --join 'FSS1.x'"])
def test_text_that_is_none_makes_nothing(machines: list[Machine], answer: str) -> None:
    with asked(machines[0]) as terminal:
        terminal.until(TEXT)
        terminal.type(answer)
        assert terminal.end() == 2
    assert "invalid_request: join: " in terminal.shown
    assert nothing_was_made(machines[0])


@pytest.mark.parametrize("question", [TEXT, NAME, ADDRESS])
def test_interrupt_at_a_question_makes_nothing(machines: list[Machine], question: str) -> None:
    with asked(machines[0]) as terminal:
        for each in (TEXT, NAME, ADDRESS):
            terminal.until(each)
            if each == question:
                terminal.interrupt()
                break
            terminal.type("")
        assert terminal.end() == 130
    assert nothing_was_made(machines[0])
