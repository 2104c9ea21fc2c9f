"""What can go wrong, one class a cause.

Every message is one sentence that names what was wrong, where, and what to do. The command line
prints it and exits with code 2; a library user can catch `FedcohortError` or the exact class.
"""

import difflib
import warnings
from collections.abc import Iterable, Sequence


class FedcohortError(Exception):
    """Base of every error that fedcohort raises on purpose.

    Examples
    --------
    >>> from fedcohort import make_selector
    >>> try:
    ...     make_selector("matsch")
    ... except FedcohortError as error:
    ...     print(error)
    There is no selector 'matsch': did you mean 'match'?
    """


class FedcohortWarning(UserWarning):
    """Base of every warning of fedcohort; the command line shows each as one line."""


class InvalidInputError(FedcohortError, ValueError):
    """An argument, option or file has a value that cannot be used."""


def did_you_mean(name: str, known: Sequence[str], otherwise: str) -> str:
    """Return how a refusal of a name ends: with a known one that is near, or `otherwise`.

    Parameters
    ----------
    name : str
        What was asked for.
    known : sequence of str
        What there is.
    otherwise : str
        What to say when none of it is near.

    Examples
    --------
    >>> did_you_mean("matsch", ["dp3s", "match"], "correct the name.")
    "did you mean 'match'?"
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise


class UnknownNameError(InvalidInputError):
    """A name (of a selector, data set, model, ...) that nothing is registered under."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        hint = did_you_mean(name, known, f"choose one of {', '.join(known)}.")
        super().__init__(f"There is no {kind} {name!r}: {hint}")


class InvalidParameterError(InvalidInputError):
    """A parameter lies outside its declared range."""


class InvalidProfilesError(InvalidInputError):
    """Profiles with a wrong shape, or values that are not finite."""


class MissingKnowledgeError(InvalidInputError):
    """A selector was not given something it declares to need."""


class UnknownClientError(InvalidInputError):
    """An id that belongs to no client of this federation."""


class DuplicateClientError(InvalidInputError):
    """A client joins twice."""


class CohortSizeError(InvalidInputError):
    """A cohort size that the available clients cannot fill."""


class InvalidCohortError(InvalidInputError):
    """A selector asked or chose clients, or gave weights, with which no round can be trained.

    Attributes
    ----------
    problem : str
        What is wrong with them.
    """

    def __init__(self, selector: str, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"Selector {selector!r} does not choose as every selector must ({problem}): mend it,"
            " with the help of fedcohort.testing.check_selector."
        )


class BrokenSelectorError(InvalidInputError):
    """A selector of the user's own raised an error, which is this one's cause."""


class NoClientsAvailableError(CohortSizeError):
    """Nobody is available in this round."""


class InvalidKernelError(InvalidInputError):
    """A k-DPP kernel that is not square, symmetric, finite or positive semi-definite."""


class PartitionError(InvalidInputError):
    """A partition that the data cannot satisfy."""


class DatasetError(FedcohortError):
    """A data set that cannot be had."""


class CorruptFileError(DatasetError, InvalidInputError):
    """A data file that is truncated, damaged or not what its name says."""


class DownloadError(DatasetError):
    """No source of a data set answered."""


class InvalidModelError(InvalidInputError):
    """A model that cannot be built or cannot be trained federatedly."""


class StudyError(InvalidInputError):
    """A study file that cannot be read, or says something that cannot be done."""


class StoreError(FedcohortError):
    """A result store that cannot be opened, read or written."""


class DamagedStoreError(StoreError):
    """A result store whose file is not what fedcohort wrote; nothing in it is changed."""


class UnwritableFileError(StoreError):
    """A file that cannot be written, because the disk is full for example."""


class MissingPackageError(FedcohortError):
    """An option needs a package that is not installed."""

    def __init__(self, what: str, extra: str, error: ImportError) -> None:
        super().__init__(f"{what} needs a package ({error}): pip install 'fedcohort[{extra}]'.")


class WorkerError(FedcohortError):
    """A process that works on a study failed."""


class DeviceMemoryError(FedcohortError):
    """A GPU without room for what is trained on it."""


class RefusedReplyError(FedcohortError):
    """A client of a real federation sent something that cannot be used; it is left out.

    The reason may quote the client, and goes to a terminal: signs that cannot be printed are
    replaced, and it is cut to a length that fits a line of a log.
    """

    def __init__(self, reason: str) -> None:
        printable = "".join(
            sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in reason
        )
        longest = 300
        super().__init__(printable if len(printable) <= longest else f"{printable[:longest]}…")


class TooFewClientsError(FedcohortError):
    """A real federation has had fewer clients than a round needs for too long."""


def show_warnings_as_lines() -> None:
    """Print each of fedcohort's warnings as one line, without the place in its code.

    Examples
    --------
    >>> show_warnings_as_lines()  # doctest: +SKIP
    """
    usual = warnings.formatwarning

    def shown(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if issubclass(category, FedcohortWarning):
            return f"Warning: {message}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = shown
