"""Do a study in processes of which all but the last kill themselves, each at its own moment.

    python interrupted_study.py STUDY.toml FOLDER KILLS SEED

A moment is a call inside fedcohort's simulation, NumPy's file writing or zipfile, counted from the
process's beginning: KILLS of them are drawn, and at each a process sends itself SIGKILL. Prints how
many processes died of it, and what share of an undisturbed study's moments the last one still had
to do. Processes are forked from the one that did the undisturbed study, so that all that is loaded
or compiled on first use is there.
"""

import os
import signal
import sys
from pathlib import Path

from fedcohort.federation import load_dataset
from fedcohort.randomness import generator
from fedcohort.simulation import Store, group_training
from fedcohort.simulation.execution import here
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.study import read_study

COUNTED = ("fedcohort/simulation", "zipfile", "numpy/lib")


class Moments:
    """Counts calls, and kills the process at one of them."""

    def __init__(self, fatal):
        self.seen = 0
        self.fatal = fatal
        self.counted = {}

    def __call__(self, frame, event, _):
        code = frame.f_code
        if code not in self.counted:
            self.counted[code] = any(part in code.co_filename for part in COUNTED)
        if self.counted[code] and event in ("call", "c_call"):
            self.seen += 1
            if self.seen == self.fatal:
                os.kill(os.getpid(), signal.SIGKILL)


def do(study, folder):
    """What ``fedcohort study run`` does."""
    prepared = prepare_study(study, device="cpu")
    with Store(folder) as store:
        assert run_study(prepared, store)


def count(study, folder, fatal=None):
    """Do the study, up to a fatal moment if there is one; return how many moments it had."""
    moments = Moments(fatal)
    sys.setprofile(moments)
    do(study, folder)
    sys.setprofile(None)
    return moments.seen


def attempt(study, folder, fatal=None):
    """Do the study in another process; return its exit status and how many moments it had."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, str(count(study, folder, fatal)).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as said:
        return status, int(said.read() or 0)


def main(file, folder, kills, seed):
    # A save after every round: there is something to lose and to resume from at every moment.
    here.SECONDS_BETWEEN_SAVES = group_training.SECONDS_BETWEEN_SAVES = 0.0
    group_training._SAVING_SHARE = 0
    study = read_study(file)
    load_dataset(study.configs[0].dataset)
    moments = count(study, Path(folder) / "undisturbed")
    rng = generator(int(seed), "moments of death")
    died = 0
    # Late enough to get beyond the preparations, early enough that something is always left.
    for fatal in rng.integers(1, 3 * moments // (2 * int(kills)), size=int(kills)):
        status, _ = attempt(study, Path(folder) / "killed", int(fatal))
        died += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    status, left = attempt(study, Path(folder) / "killed")
    assert status == 0
    sys.stdout.write(f"{died} {left / moments}")


if __name__ == "__main__":
    main(*sys.argv[1:])
