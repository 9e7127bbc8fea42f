"""Argument parsing shared by the subcommands: one-line errors, and flags made from settings.VARIABLES."""

import argparse
import difflib
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from fakegpu.errors import SettingsError
from fakegpu.settings import VARIABLES, Settings, Variable


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line and a hint; flags are never abbreviated."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog=prog, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split()
        flags = [flag for action in self._actions for flag in action.option_strings]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], flags, 1) if unknown else []
        message = f"unknown flag {unknown[0]}" if unknown else re.sub(r"^argument [^:]+: (?=--)", "", message)
        hint = f"did you mean {close[0]}?" if close else f"see `{self.prog} --help`"
        raise SettingsError(message, hint)


def flag_type(variable: Variable) -> Any:
    """A callable for argparse; errors carry the flag's own name."""

    def parse(text: str) -> Any:
        try:
            return variable.parse(text, variable.flag)
        except SettingsError as error:  # a ValueError would lose its text in argparse
            raise argparse.ArgumentTypeError(error.text) from None

    return parse


def add_settings(parser: argparse.ArgumentParser, fields: Iterable[str] | None = None) -> None:
    """Add the flags of settings.VARIABLES (all, or those of `fields`); absent flags parse to None."""
    wanted = None if fields is None else set(fields)
    for variable in VARIABLES:
        if not variable.flag or (wanted is not None and variable.field not in wanted):
            continue
        kwargs: dict[str, Any] = {"dest": variable.field, "default": None, "help": help_text(variable)}
        if variable.type == "bool":
            parser.add_argument(variable.flag, action=argparse.BooleanOptionalAction, **kwargs)
        else:
            metavar = "{" + ",".join(variable.choices) + "}" if variable.choices else variable.type.upper()
            parser.add_argument(variable.flag, type=flag_type(variable), metavar=metavar, **kwargs)


def help_text(variable: Variable) -> str:
    """Help, variable and default of one flag."""
    default = "" if variable.default in (None, "", False) else f"; default {variable.default}"
    return f"{variable.help} ({variable.env}{default})".replace("%", "%%")


def settings_of(options: argparse.Namespace, settings: Settings | None = None) -> Settings:
    """The environment's settings with the given flags on top."""
    settings = Settings.from_env() if settings is None else settings
    known = {variable.field for variable in VARIABLES}
    return settings.override(**{name: value for name, value in vars(options).items() if name in known})
