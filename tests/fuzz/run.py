"""Fuzz every target for long, with two engines; prints the cases a target.

    python tests/fuzz/run.py [--cases 240000] [--seed N] [--engine hypothesis|atheris|both]
                             [--target NAME] [--hang 60]

hypothesis draws and shrinks inputs; atheris (libFuzzer) follows coverage of fedcohort's own code. A
case fails if anything but a `FedcohortError` is raised, a check does not hold, or it takes longer
than `--hang` seconds. The input of a failure is printed in hexadecimal: a regression test feeds it
to `targets.run`.
"""

import argparse
import collections
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).parents[place]) for place in (0, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=240_000, help="in all")
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86_400)
    parser.add_argument("--engine", choices=["hypothesis", "atheris", "both"], default="both")
    parser.add_argument("--target")
    parser.add_argument("--hang", type=int, default=60, help="seconds that one case may take")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        (with_atheris if options.engine == "atheris" else with_hypothesis)(options)
        return
    from targets import TARGETS

    names = [options.target] if options.target else list(TARGETS)
    engines = ["hypothesis", "atheris"] if options.engine == "both" else [options.engine]
    each = -(-options.cases // (len(names) * len(engines)))
    print(f"seed {options.seed}, {each} cases for each target and engine", flush=True)
    total, failed = 0, []
    for name in names:
        for engine in engines:
            done, refused, seconds, error = start(name, engine, each, options)
            total += done
            print(
                f"{name:18}{engine:12}{done:8} cases {refused:8} refused {seconds:7.1f} s"
                f"  {'FAILED' if error else 'ok'}",
                flush=True,
            )
            if error:
                failed.append(name)
                print(error, flush=True)
    print(f"{total} cases in all, {len(failed)} failures", flush=True)
    sys.exit(bool(failed))


def start(name, engine, cases, options):
    """Fuzz one target in a process of its own, since libFuzzer ends the process it runs in."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r", suffix=".count") as counter:
        command = [sys.executable, __file__, "--one", "--target", name, "--engine", engine]
        command += ["--cases", str(cases), "--seed", str(options.seed), "--hang", str(options.hang)]
        result = subprocess.run(
            command,
            env=os.environ | {"FUZZ_COUNTER": counter.name},
            capture_output=True,
            text=True,
            check=False,
        )
        counts = [int(n) for n in counter.read().split()] or [0, 0]
    error = "" if result.returncode == 0 else result.stdout[-4000:] + result.stderr[-2000:]
    return *counts, time.monotonic() - began, error


def counting(target, options):
    """Return the function that engines call, which counts its cases and ends hanging ones."""
    from targets import run

    counts = collections.Counter()

    def give_up(*_):
        raise TimeoutError(f"one case took more than {options.hang} seconds")

    signal.signal(signal.SIGALRM, give_up)

    def write():
        text = f"{counts['done']} {counts['refused']}"
        pathlib.Path(os.environ["FUZZ_COUNTER"]).write_text(text, encoding="utf-8")

    def case(data):
        signal.alarm(options.hang)
        try:
            counts["refused"] += run(target, bytes(data))
        except BaseException:
            print(f"target {target!r} fails on bytes.fromhex({bytes(data).hex()!r})", flush=True)
            raise
        finally:
            signal.alarm(0)
            counts["done"] += 1
            if counts["done"] % 500 == 0 or counts["done"] == options.cases:
                write()

    return case, write


def with_hypothesis(options):
    from hypothesis import HealthCheck, given, seed, settings
    from hypothesis import strategies as st

    case, write = counting(options.target, options)

    @seed(options.seed)
    @settings(
        max_examples=options.cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(min_size=8, max_size=600))
    def fuzz(data):
        case(data)

    try:
        fuzz()
    finally:
        write()


def with_atheris(options):
    import atheris

    with atheris.instrument_imports(include=["fedcohort"]):
        import targets  # noqa: F401

        import fedcohort  # noqa: F401
    case, _ = counting(options.target, options)
    arguments = [
        sys.argv[0],
        f"-runs={options.cases}",
        f"-seed={options.seed}",
        "-max_len=600",
        "-len_control=0",
        f"-timeout={options.hang + 10}",
        "-verbosity=0",
        f"-artifact_prefix={tempfile.gettempdir()}/fuzz-",
    ]
    atheris.Setup(arguments, case)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
