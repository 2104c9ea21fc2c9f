"""The commands and their options."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedcohort.cli.advise import ADVICE_WITHOUT, advice_on
from fedcohort.cli.document import Json, print_document
from fedcohort.cli.options import App, completion, one_of, with_settings
from fedcohort.errors import InvalidInputError, InvalidParameterError
from fedcohort.federation import DATASETS
from fedcohort.simulation import RunConfig

app = App(add_completion=True)
data_app = App(help="Data sets on this machine.")
app.add_typer(data_app, name="data")

study_app = App(help="Many runs, named in one TOML file.")
app.add_typer(study_app, name="study")

Out = Annotated[Path, typer.Option("--out", help="Folder for the results; resumes what is there.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
TargetOn = Annotated[
    str, typer.Option(help="Whether --target is accuracy on train or on test samples.")
]


def _show_version(asked: bool) -> None:
    if asked:
        from fedcohort import __version__

        typer.echo(f"fedcohort {__version__}")
        raise typer.Exit


@app.callback()
def fedcohort(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and end.", callback=_show_version),
    ] = False,
) -> None:
    """Choose which clients train in each round of federated learning, and compare rules."""


@app.command()
def demo(
    out: Out = Path("fedcohort-demo"),
    json: Json = False,
    device: Device = "auto",
) -> None:
    """Compare the paper's selectors on the embedded digits in under a minute."""
    from fedcohort.cli.demo import run_demo

    run_demo(out, json=json, device=device)


@app.command()
@with_settings(
    without=("selector", "precision", "seed"),
    groups={
        "selector": "selection",
        "seeds": "training",
        "precision": "training",
        "device": "training",
    },
)
def run(
    settings: dict[str, Any],
    *,
    selector: Annotated[
        list[str] | None,
        typer.Option(
            help="A selector, or name:key=value,…; repeat it to compare several.  [default: dp3s,"
            " fedavg]",
            autocompletion=completion("selector"),
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Such as 0..9 or 0,3,7.")] = "0",
    precision: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16 (needs a GPU), or auto: bfloat16 on a GPU.",
            autocompletion=completion("precision"),
        ),
    ] = "auto",
    device: Device = "auto",
    target: Annotated[float, typer.Option(help="Accuracy to reach.")] = 0.9,
    target_on: TargetOn = "train",
    out: Out = Path("fedcohort-out"),
    save_model: Annotated[
        Path | None,
        typer.Option(help="Folder for the final models, one state dict (.pt) per run."),
    ] = None,
    json: Json = False,
) -> None:
    """Train with one or more selectors and compare them."""
    from fedcohort.simulation.scores import Target
    from fedcohort.simulation.seeds import parse_seeds
    from fedcohort.simulation.study import check_target, check_target_on

    goal = Target(check_target(target, "--target"), check_target_on(target_on, "--target-on"))
    if precision != "auto":
        settings["precision"] = precision
    configs = [
        RunConfig(**settings, selector=name, seed=seed)
        for name in selector or ["dp3s", "fedavg"]
        for seed in parse_seeds(seeds, "--seeds")
    ]
    # Imported only now, since PyTorch comes with it: wrong options are answered at once.
    from fedcohort.cli.run import in_fast_precision, run_and_show

    if precision == "auto":
        configs = in_fast_precision(configs, device)
    run_and_show(configs, out, target=goal, json=json, device=device, save_models=save_model)


@app.command()
def arena(
    selector: Annotated[
        str | None,
        typer.Argument(
            help="Your rule: FILE.py:Class, module:Class or a name, with parameters as"
            " FILE.py:Class:key=value,….",
            autocompletion=completion("selector"),
        ),
    ] = None,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            help="A condition, or a data set for all of its conditions; may be repeated."
            "  [default: digits]",
            show_default=False,
        ),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Print the conditions and end; all if none is named.")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(help="Some of the published seeds, such as 0..2; all of them.")
    ] = None,
    device: Device = "auto",
    out: Out = Path("fedcohort-arena"),
    json: Json = False,
) -> None:
    """Put your rule beside the published ones: same seeds, and only yours runs."""
    from fedcohort.cli.arena import list_conditions, run_arena
    from fedcohort.leaderboard.challenge import USUAL, challenge
    from fedcohort.simulation.seeds import parse_seeds

    if show_list:
        list_conditions(condition)
        return
    if selector is None:
        raise InvalidInputError(
            "The arena needs a rule: give FILE.py:Class, module:Class or a name, or --list."
        )
    chosen = None if seeds is None else parse_seeds(seeds, "--seeds")
    run_arena(challenge(selector, condition or USUAL, chosen), out, json=json, device=device)


@study_app.command("run")
def run_study(
    file: Annotated[Path, typer.Argument(help="The study, such as studies/paper.toml.")],
    out: Out = Path("fedcohort-out"),
    device: Device = "auto",
    part: Annotated[
        list[str] | None, typer.Option("--part", help="Do this part alone; may be repeated.")
    ] = None,
    selector: Annotated[
        list[str] | None,
        typer.Option(
            help="A selector in place of the study's; may be repeated.",
            autocompletion=completion("selector"),
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds in place of the study's, such as 0..9.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, or groups at a time on Ray.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    stop_after: Annotated[
        float | None,
        typer.Option(min=0, help="Minutes after which to save and end, with exit code 3."),
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option("--log", help="tensorboard:FOLDER or mlflow:URI.")
    ] = None,
) -> None:
    """Do all runs of a study; the same command goes on after any interruption."""
    from fedcohort.simulation.logs import parse_log
    from fedcohort.simulation.seeds import parse_seeds
    from fedcohort.simulation.study import read_study

    replaced: dict[str, Any] = {"selector": selector} if selector else {}
    if seeds is not None:
        replaced["seeds"] = parse_seeds(seeds, "--seeds")
    study = read_study(file, replaced)
    study = study.only(part) if part else study
    one_of("--engine", engine, ("local", "ray"))
    for target in log or ():
        parse_log(target)
    # Imported only now, since PyTorch comes with it: wrong studies are answered at once.
    from fedcohort.cli.study import run_and_show_parts

    run_and_show_parts(
        study,
        out,
        device=device,
        workers=workers,
        engine=engine,
        stop_after=stop_after,
        logs=log or (),
    )


@study_app.command("status")
def study_status(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a study.")],
    json: Json = False,
) -> None:
    """Say how far a study is, what is left and who works on it."""
    from fedcohort.cli.status import show_status
    from fedcohort.simulation import Store

    with Store.existing(folder) as store:
        show_status(store, json=json)


@study_app.command("export")
def export_study(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a study or a run.")],
    to: Annotated[
        Path, typer.Option("--to", help="FILE.csv, FILE.parquet, or a folder for all tables.")
    ],
    table: Annotated[
        str, typer.Option(help="rounds, runs, summary, clients or classes; for one file.")
    ] = "rounds",
) -> None:
    """Write results as CSV or Parquet: rounds, runs, a row a selector, clients or classes."""
    from fedcohort.report.export import TABLES, export
    from fedcohort.simulation import Store

    one_of("--table", table, tuple(TABLES))
    with Store.existing(folder) as store:
        for path in export(store, to, table):
            typer.echo(path)


@study_app.command("merge")
def merge_studies(
    folder: Annotated[Path, typer.Argument(help="Where the runs go.")],
    others: Annotated[list[Path], typer.Argument(help="Folders whose finished runs are taken.")],
) -> None:
    """Take finished runs over from other folders: parts that other machines did."""
    from fedcohort.simulation import Store
    from fedcohort.simulation.merging import merge

    for other in others:
        Store.existing(other).close()
    with Store(folder) as store:
        for other in others:
            merged = merge(store, other)
            typer.echo(f"{other}: {merged.added} runs added, {merged.known} were there already.")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The --out folder of a run.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file; report.html in the folder.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy to reach; what the runs or their study named."),
    ] = None,
    target_on: Annotated[
        str | None,
        typer.Option(
            help="Whether --target is accuracy on train or on test samples; as the runs or their"
            " study named."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML file about all runs in a folder."""
    from fedcohort.simulation import Store
    from fedcohort.simulation.scores import Target
    from fedcohort.simulation.study import check_target, check_target_on

    measured = None if target_on is None else check_target_on(target_on, "--target-on")
    if target is None and measured is not None:
        raise InvalidParameterError("--target-on is of a --target: give one too.")
    score = None if target is None else check_target(target, "--target")

    with Store.existing(folder) as store:
        from fedcohort.report.html import write_report

        goals = store.targets()
        if score is not None:
            usual = Target(score)
            goals = {
                config.key: Target(score, measured or goals.get(config.key, usual).on)
                for config in store.configs()
            }
        typer.echo(write_report(store, output or folder / "report.html", goals or Target(0.9)))


@app.command()
def select(
    profiles: Annotated[Path, typer.Option(help="Profiles [C, Q]: .npy, .npz or .csv.")],
    k: Annotated[int, typer.Option("-k", help="Clients to choose.")],
    selector: Annotated[
        str,
        typer.Option(
            help="A selector, or name:key=value,….", autocompletion=completion("selector")
        ),
    ] = "dp3s",
    seed: Annotated[int, typer.Option(help="Decides the draw.")] = 0,
    sizes: Annotated[Path | None, typer.Option(help="Samples a client: .npy or .csv.")] = None,
    json: Json = False,
) -> None:
    """Choose one cohort from profiles and print its client ids on one line."""
    from fedcohort.cli.select import select_once

    cohort = select_once(profiles, k, selector, seed, sizes)
    if json:
        print_document({"ids": cohort.ids.tolist(), "weights": cohort.weights.tolist()})
    else:
        typer.echo(" ".join(map(str, cohort.ids.tolist())))


@app.command()
@with_settings(
    without=ADVICE_WITHOUT,
    groups={"profiles": "data", "sizes": "data", "k": "selection", "device": "training"},
)
def advise(
    settings: dict[str, Any],
    *,
    profiles: Annotated[
        Path | None,
        typer.Option(
            help="A .npy, .npz or .csv file of profiles [C, Q], instead of a data set. A .npz may"
            " hold sizes [C], agreements [C] and shared too."
        ),
    ] = None,
    sizes: Annotated[
        Path | None, typer.Option(help="A .npy or .csv file [C], samples a client; with profiles.")
    ] = None,
    k: Annotated[int | None, typer.Option("-k", help="Short for --cohort.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Say from profiles whether selection is worth it in a federation, before it trains."""
    advice = advice_on(settings, profiles, sizes, k, device)
    if json:
        print_document(advice.to_json())
    else:
        typer.echo(advice)


@data_app.command("fetch")
def fetch_data(
    name: Annotated[
        str,
        typer.Argument(
            help="mnist, fashion-mnist, cifar-10, mnist-by-writer or shakespeare.",
            autocompletion=lambda: list(DATASETS),
        ),
    ],
) -> None:
    """Find a data set on this machine or download it, checked, and print its folder."""
    from fedcohort.cli.data import fetch_with_progress

    typer.echo(fetch_with_progress(name))
