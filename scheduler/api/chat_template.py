"""A model's chat template, run in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


class ChatTemplateError(Exception):
    """The template is damaged, or refuses the conversation."""


class ChatTemplate:
    """A Hugging Face chat template: jinja2 with the functions and settings that such
    templates are written for."""

    def __init__(self, source: str, special_tokens: Mapping[str, str | list[str]]) -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the model's chat template is damaged: {error}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a conversation, ready for the assistant to go on.

        Each message has a `role` and a `content`. Raises ChatTemplateError.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except _Refusal as error:
            raise ChatTemplateError(f"the model's chat template refuses it: {error}") from error
        except Exception as error:  # a template can fail in any way that Python can
            kind = type(error).__name__
            raise ChatTemplateError(f"the model's chat template fails: {kind}: {error}") from error


class _Refusal(Exception):
    pass


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is only
    its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call: Callable[..., jinja2.nodes.Expr] = self.call_method
        return jinja2.nodes.CallBlock(call("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own would escape for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise _Refusal(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)
