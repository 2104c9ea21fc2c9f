"""A client's memory of what it has answered: fresh noise on each asking could be averaged out.

A noised profile is drawn once for a client, a model and a promise, and kept in a file on the
client, so that a restarted client, a restarted server and a run that is resumed get the same
answer. Another model needs another answer, and the promises of both add up.
"""

import dataclasses
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcohort.errors import InvalidInputError, StoreError, UnwritableFileError
from fedcohort.files import replace_file

FOLDER_VARIABLE = "FEDCOHORT_ANSWERS"


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers that clients on this machine have given, in a folder for its owner alone.

    `log` hears how many answers have left a client.
    """

    folder: Path
    log: logging.Logger

    @classmethod
    def at(cls, folder: str | None, log: logging.Logger) -> "Answers":
        """Return those of a folder; by default of ``$FEDCOHORT_ANSWERS``, or the user's own."""
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        default = os.environ.get(FOLDER_VARIABLE) or os.path.join(state, "fedcohort", "answers")
        return cls(Path(folder or default), log)

    def once(
        self,
        client: str,
        model: Mapping[str, NDArray[Any]],
        promise: str,
        draw: Callable[[], NDArray[np.float32]],
        *,
        most: int | None = None,
    ) -> NDArray[np.float32]:
        """Return the answer of a client to a question, drawn when it is asked first.

        The question is the model that the answer is measured with and what the noise promises, in
        words; ``draw()`` measures and noises. At most `most` different answers leave the client.
        """
        owner = hashlib.sha256(client.encode()).hexdigest()[:24]
        path = self.folder / f"{owner}-{_digest(model, promise)}.npy"
        try:
            if path.exists():
                return np.asarray(np.load(path, allow_pickle=False), np.float32)
            given = len(list(self.folder.glob(f"{owner}-*.npy")))
            if most is not None and given >= most:
                raise InvalidInputError(
                    f"{given} noised profiles have left this client, and no more than {most} may:"
                    f" raise the limit, or remove what is kept in {self.folder} if those data are"
                    " gone."
                )
            vector = draw()
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replace_file(path, private=True) as file:
                np.save(file, vector, allow_pickle=False)
        except InvalidInputError:
            raise
        except (OSError, ValueError, EOFError, UnwritableFileError) as error:
            raise StoreError(
                f"What this client answered cannot be kept in {self.folder}"
                f" ({error.__cause__ or error}), and without that its promise would not outlive a"
                f" restart: set {FOLDER_VARIABLE} to a folder that it may write."
            ) from error
        if given:
            self.log.warning(
                "This is noised profile number %d that leaves this client, each under %s: their"
                " promises add up.",
                given + 1,
                promise,
            )
        return vector


def _digest(model: Mapping[str, NDArray[Any]], promise: str) -> str:
    found = hashlib.sha256(promise.encode())
    for name, values in model.items():
        found.update(f"\0{name}\0{values.dtype}{values.shape}\0".encode())
        found.update(np.ascontiguousarray(values).tobytes())
    return found.hexdigest()[:24]
