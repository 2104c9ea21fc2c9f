"""Options made from the declarations of the settings, and help that reads well in a terminal."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, get_args, get_type_hints

import typer
from click import Context, HelpFormatter
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from fedcohort.errors import InvalidParameterError
from fedcohort.settings import GROUPS, Group, Setting
from fedcohort.simulation.config import SETTINGS

_METAVARS = {int: "INTEGER", float: "FLOAT", str: "TEXT"}


class Command(TyperCommand):
    """A command whose help shows arguments and then options, those of settings by their group."""

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the arguments and options under their headings."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            title, text = record
            argument = param.param_type_name == "argument"
            group = getattr(param, "rich_help_panel", None)
            if argument and not getattr(param, "help", None):
                # click 8.4 and later forget what typer told them about an argument.
                text = f"{_argument_helps(self.callback).get(param.name, '')}  {text}".strip()
            # typer escapes brackets for rich even where rich does not print them.
            row = title, text.replace("\\[", "[")
            sections.setdefault(group or ("arguments" if argument else "options"), []).append(row)
        order = ("arguments", *GROUPS, "options")
        for group in sorted(sections, key=order.index):
            with formatter.section(group.capitalize()):
                # In a narrow terminal long options stand on a line of their own.
                formatter.write_dl(sections[group], col_max=min(30, formatter.width // 4))


def _argument_helps(callback: Callable[..., Any] | None) -> dict[str | None, str]:
    """Return what a command's function says about its arguments, by name."""
    hints = get_type_hints(inspect.unwrap(callback), include_extras=True) if callback else {}
    return {
        name: info.help or ""
        for name, hint in hints.items()
        for info in get_args(hint)[1:]
        if isinstance(info, ArgumentInfo)
    }


class App(typer.Typer):
    """Commands with plain help, which ``-h`` shows too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
            **{"add_completion": False} | options,
        )

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Register a function as a command."""
        return super().command(name, **{"cls": Command} | options)


def one_of(option: str, text: str, words: Sequence[str]) -> None:
    """Refuse a text that is none of a few words."""
    if text not in words:
        raise InvalidParameterError(f"{option} must be {' or '.join(words)}, not {text!r}.")


def completion(name: str) -> Callable[[str], list[str]]:
    """Return what completes the beginning of a setting's value in a shell."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in SETTINGS[name].completions() if word.startswith(incomplete)]

    return complete


def with_settings(
    *, without: Collection[str], groups: Mapping[str, Group]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is a dict of settings.

    The function gets an option for each setting but those in `without`; its dict holds those that
    were given and those whose option has a default of its own. `groups` are those of the function's
    other options, by name; the rest are output.
    """
    offered = {n: s for n, s in SETTINGS.items() if s.group is not None and n not in without}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        _, *others = inspect.signature(function).parameters.values()
        own = [_parameter(setting) for setting in offered.values()]

        @functools.wraps(function)
        def command(**given: Any) -> None:
            settings = {}
            for name, setting in offered.items():
                value = given.pop(name)
                if value is not None:
                    settings[name] = value if setting.kind is bool else setting.from_text(value)
                elif setting.on_command_line is not None:
                    settings[name] = setting.on_command_line
            function(settings, **given)

        parameters = [*own, *(_in_group(p, groups.get(p.name, "output")) for p in others)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def _in_group(parameter: inspect.Parameter, group: Group) -> inspect.Parameter:
    kind, option = get_args(parameter.annotation)
    option = copy.copy(option)
    option.rich_help_panel = group
    return parameter.replace(annotation=Annotated[kind, option])


def _parameter(setting: Setting) -> inspect.Parameter:
    usual = setting.to_text(setting.option_default)
    if setting.kind is bool:
        kind: Any = bool | None
        option = typer.Option(
            setting.option, help=setting.help, rich_help_panel=setting.group, show_default=False
        )
    else:
        kind = str | None
        option = typer.Option(
            setting.option,
            help=f"{setting.help}  [default: {usual}]",
            metavar="|".join((_METAVARS[setting.kind], *setting.none[:1])),
            rich_help_panel=setting.group,
            show_default=False,
            autocompletion=completion(setting.name),
        )
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind, option],
    )
