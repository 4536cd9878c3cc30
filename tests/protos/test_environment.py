"""Every server flag is a variable of the environment too."""

from __future__ import annotations

import argparse
import shlex

import pytest

from nanoserve.environment import EnvironmentParser, known_variables, variable
from scheduler.__main__ import parser as scheduler_parser
from worker.__main__ import parser as worker_parser


def parser() -> EnvironmentParser:
    made = EnvironmentParser(prog="prog")
    made.add_argument("--max-queue", type=int, default=5)
    made.add_argument("--insecure", action="store_true")
    made.add_argument("--mode", choices=("a", "b"), default="a")
    made.add_argument("--name", default="x y")
    made.add_argument("--secret", help=argparse.SUPPRESS)
    made.add_print_config()
    return made


def refused(capsys: pytest.CaptureFixture[str], **environment: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parser().parse_with([], environment)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_flag_beats_the_environment_which_beats_the_default() -> None:
    assert parser().parse_with([], {}).max_queue == 5
    assert parser().parse_with([], {"NANOSERVE_MAX_QUEUE": "7"}).max_queue == 7
    both = parser().parse_with(["--max-queue", "9"], {"NANOSERVE_MAX_QUEUE": "7"})
    assert both.max_queue == 9


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("YES", True), ("on", True), ("0", False), ("False", False)]
)
def test_a_flag_without_a_value_is_a_yes_or_a_no(text: str, expected: bool) -> None:
    assert parser().parse_with([], {"NANOSERVE_INSECURE": text}).insecure is expected


def test_an_empty_variable_is_none_and_other_programs_variables_are_not_ours() -> None:
    environment = {"NANOSERVE_MAX_QUEUE": "", "NANOSERVE_ADDRESS": "a:1", "PATH": "/bin"}
    assert parser().parse_with([], environment).max_queue == 5


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("NANOSERVE_MAX_QUEUE", "many", "not a value of --max-queue"),
        ("NANOSERVE_INSECURE", "maybe", "must be one of 1, true, yes, on, 0, false, no, off"),
        ("NANOSERVE_MODE", "c", "must be one of a, b"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_variables_name(
    capsys: pytest.CaptureFixture[str], name: str, value: str, why: str
) -> None:
    said = refused(capsys, **{name: value})
    assert f"{name}={value!r} in the environment: {why}" in said


@pytest.mark.parametrize("name", ["NANOSERVE_MAX_QUEU", "NANOSERVE_SECRET", "NANOSERVE_HELP"])
def test_a_variable_that_no_flag_knows_stops_the_start(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert f"{name} in the environment: no flag of that name" in refused(capsys, **{name: "1"})


def test_print_config_tells_each_setting_and_where_it_comes_from_and_can_be_read_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = {"NANOSERVE_MAX_QUEUE": "7", "NANOSERVE_INSECURE": "yes"}
    with pytest.raises(SystemExit) as ended:
        parser().parse_with(["--max-queue=9", "--print-config"], environment)
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "NANOSERVE_MAX_QUEUE=9  # flag",
        "NANOSERVE_INSECURE=1  # environment",
        "NANOSERVE_MODE=a  # default",
        "NANOSERVE_NAME='x y'  # default",
    ]
    again = dict(shlex.split(line, comments=True)[0].split("=", 1) for line in lines)
    parsed = parser().parse_with([], again)
    assert (parsed.max_queue, parsed.insecure, parsed.name) == (9, True, "x y")


@pytest.mark.parametrize(
    "server", [scheduler_parser(), worker_parser()], ids=["scheduler", "worker"]
)
def test_every_flag_of_both_servers_has_a_variable(server: EnvironmentParser) -> None:
    hidden = {"--help", "--print-config"}
    flags = {
        max(action.option_strings, key=len)
        for action in server._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    }
    assert {variable(flag) for flag in flags - hidden} == known_variables(server)
    assert "NANOSERVE_LISTEN" in known_variables(server)
