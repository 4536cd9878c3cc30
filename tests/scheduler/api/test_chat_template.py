"""Templates run as their authors expect, and cannot do more than make text."""

from __future__ import annotations

import datetime

import pytest

from scheduler.api.chat_template import ChatTemplate, ChatTemplateError

USER = [{"role": "user", "content": "hi"}]


def render(source, messages=USER, **special_tokens):
    return ChatTemplate(source, special_tokens).render(messages)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", "<s>hi</s>"),
        ("{{ messages[0].role }}", "user"),
        ("{% if add_generation_prompt %}go{% endif %}", "go"),
        ("{% if tools is none and not documents %}none{% endif %}", "none"),
        ("{% for x in range(9) %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "01"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{{ {'b': '<é>', 'a': [1]} | tojson }}", '{"b": "<é>", "a": [1]}'),
        ("{{ [1] | tojson(indent=1) }}", "[\n 1\n]"),
        ("{% generation %}kept{% endgeneration %}", "kept"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
        ("{{ '<&>' }}", "<&>"),
        ("{{ undefined_name }}", ""),
    ],
)
def test_what_templates_use_works(source, expected):
    assert render(source, bos_token="<s>", eos_token="</s>") == expected


def test_the_date_is_todays():
    assert render("{{ strftime_now('%Y') }}") == str(datetime.date.today().year)


def test_message_text_is_no_template():
    content = "{{ 7 * 7 }}{% raw %}"
    messages = [{"role": "user", "content": content}]
    assert render("{{ messages[0]['content'] }}", messages) == content


def test_a_refusal_names_the_templates_own_message():
    with pytest.raises(ChatTemplateError, match=r"refuses it: roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ 1 / 0 }}", "fails: ZeroDivisionError: division by zero"),
        ("{{ messages[0]['content'].nothing() }}", "fails: UndefinedError"),
        ("{{ messages.append(1) }}", "fails: SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "fails: SecurityError"),
        ("{{ range(10**9) }}", "fails: OverflowError"),
    ],
)
def test_a_template_that_fails_says_how(source, message):
    with pytest.raises(ChatTemplateError, match=message):
        render(source)


def test_a_damaged_template_is_refused_when_it_is_made():
    with pytest.raises(ChatTemplateError, match="chat template is damaged"):
        ChatTemplate("{% if %}", {})
