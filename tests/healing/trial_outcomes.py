"""The outcome of one trial: what was refused, and what must never happen.

Tracebacks count wherever they appear: logged with an error, or in a thread or a task that nobody awaits.
"""

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ca.errors import FilestoreError


@dataclass
class Outcome:
    """`refusals`: clear errors, which are in order. `faults`: what is not."""

    refusals: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """In the table of a run."""
        return "FAULT" if self.faults else "refused" if self.refusals else "right"

    @contextmanager
    def refusing(self, step: str) -> Iterator[None]:
        """A step that may be refused with a sentence; any other exception is a traceback to its operator."""
        try:
            yield
        except (FilestoreError, OSError) as error:
            self.refusals.append(f"{step}: {type(error).__name__}: {getattr(error, 'details', error)}")
        except BaseExceptionGroup as group:
            known, others = group.split((FilestoreError, OSError))
            if others is not None:
                self.faults.append(f"{step}: {_told(others)}")
            elif known is not None:
                self.refusals.append(f"{step}: {known.exceptions[0]}")
        except Exception as error:  # noqa: BLE001 - this is what a trial is to find
            self.faults.append(f"{step}: {_told(error)}")


class _Tracebacks(logging.Handler):
    """Hears what is logged with an exception."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self._outcome = outcome

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._outcome.faults.append(f"logged: {record.getMessage()}: {_told(record.exc_info[1])}")


def hear_tracebacks(outcome: Outcome) -> None:
    """From now on, in this process, all that is told with a traceback is a fault."""
    logging.getLogger().addHandler(_Tracebacks(outcome))
    sys.unraisablehook = lambda told: outcome.faults.append(f"unraisable: {told.exc_value!r}")
    threading.excepthook = lambda told: outcome.faults.append(f"in a thread: {told.exc_value!r}")


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-3000:]
