"""Do a study with two workers that kill themselves at drawn moments, until enough have died.

    python killed_workers.py STUDY.toml FOLDER KILLS SEED

A moment is a call inside fedcohort's simulation, NumPy's file writing or zipfile, counted from a
worker's beginning: at a drawn one it sends itself SIGKILL. The command is given again until KILLS
workers have died so, and then once more without deaths; every fifth time the command itself dies
too. Writes an undisturbed study of one process beside it. Prints how many died, and which share of
the rounds was saved before the last command. Processes are forked from the one that did the
undisturbed study, so that all that is loaded or compiled on first use is there.
"""

import contextlib
import multiprocessing
import os
import signal
import sqlite3
import sys
import warnings
from pathlib import Path

from fedcohort.errors import WorkerError
from fedcohort.federation import load_dataset
from fedcohort.randomness import generator
from fedcohort.simulation import Store, group_training
from fedcohort.simulation.execution import here as in_this_process
from fedcohort.simulation.execution import processes
from fedcohort.simulation.execution.runner import prepare_study, run_study
from fedcohort.simulation.study import read_study

COUNTED = ("fedcohort/simulation", "zipfile", "numpy/lib")
NEVER = -1


class Moments:
    """Counts calls, and kills the process at one of them."""

    def __init__(self, fatal, died):
        self.seen, self.fatal, self.died = 0, fatal, died
        self.counted = {}

    def __call__(self, frame, event, _):
        code = frame.f_code
        if code not in self.counted:
            self.counted[code] = any(part in code.co_filename for part in COUNTED)
        if self.counted[code] and event in ("call", "c_call"):
            self.seen += 1
            if self.seen == self.fatal:
                os.write(self.died, b".")
                os.kill(os.getpid(), signal.SIGKILL)


def do(study, folder, executor, fatal, died):
    """Do what ``fedcohort study run`` does; return whether it finished, and its moments."""
    moments = Moments(fatal, died)
    sys.setprofile(moments)
    try:
        with Store(folder) as store:
            finished = run_study(prepare_study(study, device="cpu"), store, executor)
    except WorkerError:
        finished = False
    finally:
        sys.setprofile(None)
    return finished, moments.seen


def command(*given):
    """Do it in another process; return whether it finished."""
    child = os.fork()
    if child == 0:
        finished, _ = do(*given)
        os._exit(0 if finished else 3)
    _, status = os.waitpid(child, 0)
    return status == 0


def two_workers(fatal, died):
    """Return what works with two processes, of which each dies at its own moment."""
    really = WORK

    def work(number, *given):
        sys.setprofile(Moments(fatal[number], died))
        try:
            really(number, *given)
        finally:
            sys.setprofile(None)

    processes._work = work
    return processes.Processes(2)


WORK = processes._work


def rounds_saved(folder):
    with contextlib.closing(sqlite3.connect(folder / "results.sqlite", timeout=60)) as db:
        return db.execute("SELECT count(*) FROM rounds").fetchone()[0]


def main(file, folder, kills, seed):
    warnings.simplefilter("ignore")
    # A save after every round: there is something to lose and to resume from at every moment.
    for module in (group_training, in_this_process):
        module.SECONDS_BETWEEN_SAVES = 0.0
    group_training._SAVING_SHARE = 0
    processes._SECONDS_BETWEEN_LOOKS = in_this_process._SECONDS_BETWEEN_LOOKS = 0.05
    fork = multiprocessing.get_context("fork")
    processes.multiprocessing.get_context = lambda _: fork
    folder, study = Path(folder), read_study(file)
    load_dataset(study.configs[0].dataset)
    graves = os.open(folder / "died", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    here = in_this_process.here
    finished, moments = do(study, folder / "undisturbed", here, NEVER, graves)
    assert finished
    rng = generator(int(seed), "moments of death")
    attempt = 0
    while os.fstat(graves).st_size < int(kills):
        attempt += 1
        fatal = rng.integers(1, 2 * moments // int(kills), size=3)
        own = int(fatal[2]) if attempt % 5 == 0 else NEVER
        workers = two_workers([int(moment) for moment in fatal[:2]], graves)
        command(study, folder / "killed", workers, own, graves)
        assert attempt <= int(kills), "too few died"
    saved = rounds_saved(folder / "killed") / rounds_saved(folder / "undisturbed")
    assert command(study, folder / "killed", two_workers([NEVER, NEVER], graves), NEVER, graves)
    sys.stdout.write(f"{os.fstat(graves).st_size} {saved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
