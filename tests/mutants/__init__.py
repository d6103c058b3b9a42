"""Deliberate bugs, one by one, and whether the tests catch each."""

from tests.mutants.beliefs import BELIEFS
from tests.mutants.cold import COLD
from tests.mutants.commands import COMMANDS
from tests.mutants.consensus import CONSENSUS
from tests.mutants.content import CONTENT
from tests.mutants.exports import EXPORTS
from tests.mutants.grants import GRANTS
from tests.mutants.lab_nights import LAB_NIGHTS
from tests.mutants.labs import LABS
from tests.mutants.members import MEMBERS
from tests.mutants.packs import PACKS
from tests.mutants.people import PEOPLE
from tests.mutants.receiving import RECEIVING
from tests.mutants.restores import RESTORES
from tests.mutants.resuming import RESUMING
from tests.mutants.rights import RIGHTS
from tests.mutants.shared_work import SHARED_WORK
from tests.mutants.sign_in import SIGN_IN
from tests.mutants.small_files import SMALL_FILES
from tests.mutants.storage import STORAGE
from tests.mutants.undo import UNDO
from tests.mutants.values import VALUES

MUTANTS = (
    *CONSENSUS,
    *MEMBERS,
    *BELIEFS,
    *STORAGE,
    *PACKS,
    *COLD,
    *CONTENT,
    *COMMANDS,
    *RIGHTS,
    *GRANTS,
    *PEOPLE,
    *SIGN_IN,
    *RECEIVING,
    *RESTORES,
    *UNDO,
    *RESUMING,
    *SHARED_WORK,
    *SMALL_FILES,
    *EXPORTS,
    *LABS,
    *LAB_NIGHTS,
    *VALUES,
)

__all__ = ["MUTANTS"]
