"""Flags from the environment: `--max-queue 10` is NANOSERVE_MAX_QUEUE=10 as well.

A flag beats the environment, which beats the default. A flag that takes no value is given by 1,
true, yes or on, and not given by 0, false, no or off. An empty variable is none. A variable
NANOSERVE_* that no flag knows stops the start: it would be a setting that someone believes in.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence

PREFIX = "NANOSERVE_"

# Of the client, of make and of the model cache: others than a server's.
OTHERS = frozenset(
    PREFIX + name for name in ("ADDRESS", "TLS_CA", "TOKEN", "TOKEN_FILE", "PROMPT", "CACHE")
)

_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class EnvironmentParser(argparse.ArgumentParser):
    """A parser whose flags may come from the environment, with `--print-config` to show what
    holds. Add all flags before parsing."""

    def parse_with(
        self, arguments: Sequence[str], environment: Mapping[str, str]
    ) -> argparse.Namespace:
        """Like parse_args. Ends the process with status 2, naming the variable, if one is not
        known or its value does not fit, and with 0 after `--print-config`."""
        flags = _flags(self)
        given = {n: text for n, text in environment.items() if n.startswith(PREFIX) and text}
        if unknown := sorted(given.keys() - flags.keys() - OTHERS):
            self.error(
                f"{', '.join(unknown)} in the environment: no flag of that name "
                "(--help lists them); remove it or correct it"
            )
        from_environment: list[str] = []
        for name in sorted(given.keys() & flags.keys()):
            from_environment += self._arguments(name, flags[name], given[name])
        parsed = self.parse_args([*from_environment, *arguments])
        if parsed.print_config:
            self._print_config(parsed, flags, given, arguments)
            self.exit()
        return parsed

    def add_print_config(self) -> None:
        self.add_argument(
            "--print-config",
            action="store_true",
            help="print every setting, with where it comes from, and exit",
        )

    def _arguments(self, name: str, action: argparse.Action, text: str) -> list[str]:
        """The command line's way to say what the variable says."""
        flag = _longest(action)
        if action.nargs != 0:
            if wrong := _wrong(action, text):
                self.error(f"{name}={text!r} in the environment: {wrong}")
            return [f"{flag}={text}"]
        if text.lower() in _YES:
            return [flag]
        if text.lower() not in _NO:
            choices = ", ".join(_YES + _NO)
            self.error(f"{name}={text!r} in the environment: must be one of {choices}")
        return []

    def _print_config(
        self,
        parsed: argparse.Namespace,
        flags: Mapping[str, argparse.Action],
        given: Mapping[str, str],
        arguments: Sequence[str],
    ) -> None:
        """A line `NAME=value  # where from` for each flag, to be read by a shell again."""
        on_command_line = vars(self._only_given(arguments))
        for name, action in flags.items():
            value = getattr(parsed, action.dest)
            source = "default"
            if action.dest in on_command_line:
                source = "flag"
            elif name in given:
                source = "environment"
            print(f"{name}={_shown(value)}  # {source}")

    def _only_given(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Only what the arguments themselves set."""
        defaults = {action: action.default for action in self._actions}
        try:
            for action in self._actions:
                action.default = argparse.SUPPRESS
            return self.parse_args(arguments, argparse.Namespace())
        finally:
            for action, default in defaults.items():
                action.default = default


def _wrong(action: argparse.Action, text: str) -> str:
    """Why the text cannot be the flag's value; empty if it can."""
    try:
        value = text if action.type is None else action.type(text)  # type: ignore[operator]
    except argparse.ArgumentTypeError as error:
        return str(error)
    except (TypeError, ValueError) as error:
        return f"not a value of {_longest(action)}: {error}"
    if action.choices is not None and value not in action.choices:
        return f"must be one of {', '.join(map(str, action.choices))}"
    return ""


def variable(flag: str) -> str:
    """The variable of a flag: "--max-queue" is "NANOSERVE_MAX_QUEUE"."""
    return PREFIX + flag.lstrip("-").replace("-", "_").upper()


def known_variables(parser: argparse.ArgumentParser) -> frozenset[str]:
    """Those that `parser` takes."""
    return frozenset(_flags(parser))


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Every flag that a person may set, by its variable."""
    actions: Iterable[argparse.Action] = parser._actions
    return {
        variable(_longest(action)): action
        for action in actions
        if action.option_strings
        and action.help != argparse.SUPPRESS
        and action.dest not in ("help", "print_config")
    }


def _longest(action: argparse.Action) -> str:
    return max(action.option_strings, key=len)


def _shown(value: object) -> str:
    if value is None or value is False:
        return "" if value is None else "0"
    if value is True:
        return "1"
    if isinstance(value, frozenset):
        return ",".join(str(one) for one in sorted(value))
    return shlex.quote(str(value))
