"""The commands and their options."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
data_app = typer.Typer(help="Data sets on this machine.", no_args_is_help=True)
app.add_typer(data_app, name="data")

study_app = typer.Typer(help="Many runs, named in one TOML file.", no_args_is_help=True)
app.add_typer(study_app, name="study")

Selectors = Annotated[
    list[str] | None,
    typer.Option(
        "--selector",
        help="A selector, or name:key=value,…; repeat it to compare several.",
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the results; resumes what is there.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


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
def run(
    dataset: Annotated[
        str, typer.Option(help="digits, mnist, fashion-mnist or FILE.npz.")
    ] = "digits",
    skew: Annotated[
        str,
        typer.Option(help="The paper's ξ in [0, 1] or H; iid, dirichlet:ALPHA, shards:N."),
    ] = "1",
    clients: Annotated[int, typer.Option(help="Clients in the federation.")] = 100,
    cohort: Annotated[int, typer.Option(help="Clients that train in a round.")] = 10,
    selector: Selectors = None,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 100,
    epochs: Annotated[float, typer.Option(help="Passes over a client's data in a round.")] = 1,
    batch_size: Annotated[str, typer.Option(help="Samples a step, or full.")] = "full",
    lr: Annotated[float, typer.Option(help="Learning rate of the clients.")] = 0.1,
    momentum: Annotated[float, typer.Option(help="Momentum of the clients.")] = 0.0,
    seeds: Annotated[str, typer.Option(help="Such as 0..9 or 0,3,7.")] = "0",
    target: Annotated[float, typer.Option(help="Training accuracy to reach.")] = 0.9,
    model: Annotated[
        str, typer.Option(help="auto, cnn, cnn-small, mlp or module:factory.")
    ] = "auto",
    init: Annotated[
        str,
        typer.Option(
            help="default, xavier-normal, xavier-uniform, kaiming-normal or kaiming-uniform."
        ),
    ] = "default",
    profile: Annotated[str, typer.Option(help="fc1, gradient or representative-gradient.")] = "fc1",
    profile_layer: Annotated[
        str | None, typer.Option(help="Layer that fc1 reads; the first fully connected one.")
    ] = None,
    profile_epsilon: Annotated[
        float | None,
        typer.Option(help="ε that profiles promise each sample; without it they are not noised."),
    ] = None,
    profile_delta: Annotated[float, typer.Option(help="δ of that promise.")] = 1e-5,
    inputs: Annotated[
        str, typer.Option(help="standard (mean 0, variance 1) or unit ([0, 1]).")
    ] = "standard",
    samples_per_client: Annotated[
        int | None, typer.Option(help="Equal client size; the largest possible by default.")
    ] = None,
    size_spread: Annotated[
        float, typer.Option(help="Spread of the logarithm of client sizes; 0 is equal.")
    ] = 0.0,
    reuse: Annotated[
        bool, typer.Option("--reuse", help="Let samples repeat when a class runs out.")
    ] = False,
    precision: Annotated[
        str, typer.Option(help="float32, bfloat16 (needs a GPU), or auto: bfloat16 on a GPU.")
    ] = "auto",
    proximal: Annotated[float, typer.Option(help="FedProx's μ; 0 is plain local training.")] = 0.0,
    server: Annotated[
        str, typer.Option(help="avg, avgm or adam, with parameters as avgm:momentum=0.9,lr=1.")
    ] = "avg",
    availability: Annotated[
        str,
        typer.Option(help="always, a share (0.7), daily:SHARE, or a .npy trace, rounds × clients."),
    ] = "always",
    dropout: Annotated[float, typer.Option(help="Share of asked clients that never answer.")] = 0.0,
    speed_spread: Annotated[
        float, typer.Option(help="Spread of the logarithm of clients' speeds; 0 is equal.")
    ] = 0.0,
    deadline: Annotated[
        float | None,
        typer.Option(help="End of a round at the latest, in passes of a median client."),
    ] = None,
    over_selection: Annotated[
        float, typer.Option(help="Ask this many times the cohort, and wait for the first.")
    ] = 1.0,
    eval_every: Annotated[int, typer.Option(help="Rounds between evaluations.")] = 1,
    eval_samples: Annotated[
        str,
        typer.Option(help="Training samples evaluated until the last round, or all."),
    ] = "5000",
    device: Device = "auto",
    out: Out = Path("fedcohort-out"),
    json: Json = False,
) -> None:
    """Train with one or more selectors and compare them."""
    from fedcohort.cli.parsing import count_or_all
    from fedcohort.simulation import RunConfig
    from fedcohort.simulation.seeds import parse_seeds

    configs = [
        RunConfig(
            dataset=dataset,
            skew=skew,
            clients=clients,
            cohort=cohort,
            samples_per_client=samples_per_client,
            size_spread=size_spread,
            reuse=reuse,
            selector=name,
            rounds=rounds,
            epochs=epochs,
            batch_size=count_or_all("--batch-size", batch_size, "full"),
            lr=lr,
            momentum=momentum,
            proximal=proximal,
            server=server,
            availability=availability,
            dropout=dropout,
            speed_spread=speed_spread,
            deadline=deadline,
            over_selection=over_selection,
            model=model,
            init=init,
            profile=profile,
            profile_layer=profile_layer,
            profile_epsilon=profile_epsilon,
            profile_delta=profile_delta,
            inputs=inputs,
            precision="float32" if precision == "auto" else precision,
            eval_every=eval_every,
            eval_samples=count_or_all("--eval-samples", eval_samples, "all"),
            seed=seed,
        )
        for name in selector or ["dp3s", "fedavg"]
        for seed in parse_seeds(seeds, "--seeds")
    ]
    # Imported only now, since PyTorch comes with it: wrong options are answered at once.
    from fedcohort.cli.run import in_fast_precision, run_and_show

    if precision == "auto":
        configs = in_fast_precision(configs, device)
    run_and_show(configs, out, target=target, json=json, device=device)


@study_app.command("run")
def run_study(
    file: Annotated[Path, typer.Argument(help="The study, such as studies/paper.toml.")],
    out: Out = Path("fedcohort-out"),
    device: Device = "auto",
    part: Annotated[
        list[str] | None, typer.Option("--part", help="Do this part alone; may be repeated.")
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
    from fedcohort.cli.parsing import one_of
    from fedcohort.simulation.logs import parse_log
    from fedcohort.simulation.study import read_study

    study = read_study(file)
    study.only(part or ())
    one_of("--engine", engine, ("local", "ray"))
    for target in log or ():
        parse_log(target)
    # Imported only now, since PyTorch comes with it: wrong studies are answered at once.
    from fedcohort.cli.study import run_and_show_parts

    run_and_show_parts(
        study,
        out,
        device=device,
        parts=part or (),
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
    table: Annotated[str, typer.Option(help="rounds, runs or summary; for one file.")] = "rounds",
) -> None:
    """Write results as CSV or Parquet: all rounds, all runs, or a row a selector."""
    from fedcohort.cli.parsing import one_of
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
        typer.Option(help="Training accuracy to reach; what the runs or their study named."),
    ] = None,
) -> None:
    """Write one self-contained HTML file about all runs in a folder."""
    from fedcohort.simulation import Store

    with Store.existing(folder) as store:
        from fedcohort.report.html import write_report

        goal = (store.targets() or 0.9) if target is None else target
        typer.echo(write_report(store, output or folder / "report.html", goal))


@app.command()
def select(
    profiles: Annotated[Path, typer.Option(help="A .npy file [C, Q], one profile a client.")],
    k: Annotated[int, typer.Option("-k", help="Clients to choose.")],
    selector: Annotated[str, typer.Option(help="A selector, or name:key=value,….")] = "dp3s",
    seed: Annotated[int, typer.Option(help="Decides the draw.")] = 0,
    sizes: Annotated[Path | None, typer.Option(help="A .npy file [C], samples a client.")] = None,
) -> None:
    """Choose one cohort from profiles and print its client ids on one line."""
    from fedcohort.cli.select import select_once

    typer.echo(" ".join(map(str, select_once(profiles, k, selector, seed, sizes))))


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(help="mnist or fashion-mnist.")],
) -> None:
    """Find a data set on this machine or download it, checked, and print its folder."""
    from fedcohort.cli.data import fetch_with_progress

    typer.echo(fetch_with_progress(name))
