"""Shakespeare's speaking roles as clients: the next character after 80.

The protocol is LEAF's, on the plays in Karpathy's ``tinyshakespeare``:

- a client is a role, and its text its speeches in the order of the plays, each on a new line;
- the first 80 % of a role's characters are for training and the rest for testing;
- a sample is a window of 80 characters inside one of these parts, and its target the character
  that follows. A window begins at every eighth character (LEAF: at every one), which
  makes an eighth as many samples;
- roles with fewer than 64 samples are left out, and so are those without a test sample.

The text has no names of plays: roles of one name in several plays (``First Citizen``) are one.

References
----------
Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, https://leaf.cmu.edu. Karpathy,
https://github.com/karpathy/char-rnn.
"""

import numpy as np
import numpy.typing as npt

from fedcohort.federation.dataset import Dataset
from fedcohort.federation.download import read_files
from fedcohort.federation.sources import Source
from fedcohort.federation.transfer import Progress

Bytes = npt.NDArray[np.uint8]

CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LENGTH = 80
STRIDE = 8
LEAST_SAMPLES = 64
TRAIN_SHARE = 0.8

_FILE = "tinyshakespeare.txt"

SHAKESPEARE = Source(
    name="shakespeare",
    sha256={_FILE: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"},
    mirrors=(
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ),
    class_names=tuple(CHARACTERS),
)


def load_shakespeare(source: Source = SHAKESPEARE, progress: Progress | None = None) -> Dataset:
    """Load the roles: tokens uint8 [N, 80], targets int64 [N], both into `CHARACTERS`."""
    text = read_files(source, progress)[_FILE].decode("ascii")
    names: list[str] = []
    train: list[Bytes] = []
    test: list[Bytes] = []
    for role, speech in speeches_by_role(text).items():
        tokens = _tokens(speech)
        cut = int(TRAIN_SHARE * len(tokens))
        first, second = windows(tokens[:cut]), windows(tokens[cut:])
        if len(second) and len(first) + len(second) >= LEAST_SAMPLES:
            names.append(role)
            train.append(first)
            test.append(second)
    x_train, x_test = np.concatenate(train), np.concatenate(test)
    roles = np.arange(len(names))
    return Dataset(
        name=source.name,
        x_train=np.ascontiguousarray(x_train[:, :-1]),
        y_train=x_train[:, -1].astype(np.int64),
        x_test=np.ascontiguousarray(x_test[:, :-1]),
        y_test=x_test[:, -1].astype(np.int64),
        classes=len(CHARACTERS),
        class_names=source.class_names,
        client=np.repeat(roles, [len(part) for part in train]),
        client_names=tuple(names),
        task="next-token",
        inputs="tokens",
        test_client=np.repeat(roles, [len(part) for part in test]),
        test_client_names=tuple(names),
    )


def speeches_by_role(text: str) -> dict[str, str]:
    """Return what each role says, in the order in which roles first speak.

    A speech is a line ``ROLE:`` and the lines after it, up to an empty line.
    """
    spoken: dict[str, list[str]] = {}
    for block in text.strip().split("\n\n"):
        role, colon, speech = block.strip("\n").partition(":\n")
        if colon and "\n" not in role:
            spoken.setdefault(role, []).append(speech)
    return {role: "\n".join(speeches) for role, speeches in spoken.items()}


def windows(tokens: Bytes) -> Bytes:
    """Return every window of 80 tokens and the one that follows, uint8 [n, 81]."""
    if len(tokens) <= LENGTH:
        return np.empty((0, LENGTH + 1), dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::STRIDE]


def _tokens(text: str) -> Bytes:
    table = np.zeros(128, dtype=np.uint8)
    table[np.frombuffer(CHARACTERS.encode("ascii"), dtype=np.uint8)] = np.arange(len(CHARACTERS))
    return table[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]
