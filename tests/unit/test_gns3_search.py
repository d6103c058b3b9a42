"""What the search for lost labs expects of the store, when a command is killed."""

from tests.gns3.search.model import Lab, Model, State


def test_backup_that_comes_after_its_command_was_killed_is_of_that_run() -> None:
    one, two = (Lab(server, "p", "lab", State({"file": server})) for server in ("one", "two"))
    model = Model([one, two])
    model.begin_run("one", {}, is_open=False)
    model.found({})
    one.state = State({"file": "edited since"})
    model.begin_run("two", {"late": "p"}, is_open=False)
    model.found({"late": "p", "own": "p"})
    assert [(each.file_uuid, each.state.files) for each in one.chain] == [("late", {"file": "one"})]
    assert [(each.file_uuid, each.state.files) for each in two.chain] == [("own", {"file": "two"})]
