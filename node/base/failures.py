"""Failures of tasks that ran together."""


def first_failure(failures: BaseExceptionGroup) -> BaseException:
    """The failure that ended the others."""
    found: BaseException = failures
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
