"""Each rule of inference.proto, by the field, the value and the limit in its message."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

from nanoserve.v1.inference_pb2 import Chat, ChatMessage, GenerateRequest, TokenIds
from scheduler.api.errors import LONGEST_MESSAGE, CallError, invalid
from scheduler.api.prompt import PromptEncoder
from scheduler.api.validation import check_parameters, check_prompt
from scheduler.core.front_end import FailureKind, Limits
from scheduler.core.penalties import NO_PENALTIES, Penalties

# 49 usable blocks of 16: a pool of 784 tokens, room for 785 with the last one sampled.
LIMITS = Limits(max_model_len=8192, vocab_size=49152, max_rows=4, block_size=16, usable_blocks=49)
SMALL_MODEL = Limits(
    max_model_len=100, vocab_size=49152, max_rows=4, block_size=16, usable_blocks=49
)


def check(limits=LIMITS, has_tokenizer=True, **fields):
    return check_parameters(GenerateRequest(**fields), limits, has_tokenizer)


def refusal(function, *arguments, **named) -> CallError:
    with pytest.raises(CallError) as raised:
        function(*arguments, **named)
    assert raised.value.code.name == "INVALID_ARGUMENT"
    assert raised.value.message.startswith(raised.value.field)
    return raised.value


def test_what_is_absent_has_its_default():
    parameters = check()
    assert parameters.max_tokens is None
    assert parameters.temperature == 1.0
    assert parameters.seed is None
    assert parameters.stop == ()
    assert parameters.stop_token_ids == frozenset()
    assert parameters.penalties == NO_PENALTIES == Penalties(1.0, 0.0, 0.0)
    assert parameters.top_logprobs is None
    assert len(parameters.request_id) == 32
    assert check().request_id != parameters.request_id


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 0.01},
        {"temperature": 100.0},
        {"seed": 0},
        {"seed": 2**63 - 1},
        {"max_tokens": 1},
        {"max_tokens": 784},
        {"stop": ["x" * 256] * 16},
        {"stop_token_ids": [0, 49151] * 32},
        {"request_id": "a b~" * 32},
        {"top_logprobs": 0},
        {"top_logprobs": 20},
    ],
)
def test_values_at_the_limits_are_taken(fields):
    parameters = check(**fields)
    for name, value in fields.items():
        taken = getattr(parameters, name)
        if name == "stop_token_ids":
            assert taken == {0, 49151}
        elif name == "stop":
            assert list(taken) == value
        else:
            assert taken == pytest.approx(value)


@pytest.mark.parametrize("repetition", [0.01, 100.0])
@pytest.mark.parametrize(("frequency", "presence"), [(-2.0, 2.0), (2.0, -2.0), (0.5, 0.0)])
def test_penalties_at_the_limits_are_taken(repetition, frequency, presence):
    taken = check(
        repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence
    ).penalties
    assert taken == Penalties(pytest.approx(repetition), frequency, presence)


def test_no_more_than_the_whole_vocabulary_is_listed():
    tiny = replace(LIMITS, vocab_size=7)
    assert check(tiny, top_logprobs=7).top_logprobs == 7
    error = refusal(check, tiny, top_logprobs=8)
    assert error.message == (
        "top_logprobs: 8, must be from 0 to 7; leave it out for no log-probabilities"
    )


def test_minus_zero_is_zero():
    assert math.copysign(1, check(temperature=-0.0).temperature) == 1
    penalties = check(frequency_penalty=-0.0, presence_penalty=-0.0).penalties
    assert [math.copysign(1, value) for value in astuple(penalties)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"temperature": math.nan}, "temperature", "nan"),
        ({"temperature": math.inf}, "temperature", "inf"),
        ({"temperature": -math.inf}, "temperature", "-inf"),
        ({"temperature": -1.0}, "temperature", "-1"),
        ({"temperature": 1e30}, "temperature", "1e+30"),
        ({"temperature": 0.0099}, "temperature", "0.0099"),
        ({"temperature": 100.1}, "temperature", "100.1"),
        ({"temperature": 1e-45}, "temperature", "1.4013e-45"),
        ({"seed": -1}, "seed", "-1"),
        ({"seed": -(2**63)}, "seed", str(-(2**63))),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_tokens": -1}, "max_tokens", "-1"),
        ({"max_tokens": 785}, "max_tokens", "785"),
        ({"max_tokens": 2**31 - 1}, "max_tokens", str(2**31 - 1)),
        ({"stop": [""]}, "stop[0]", "0 characters"),
        ({"stop": ["a", "x" * 257]}, "stop[1]", "257 characters"),
        ({"stop": ["x" * 2**20]}, "stop[0]", "1048576 characters"),
        ({"stop": ["x"] * 17}, "stop", "17 strings"),
        ({"stop": ["x"] * 100_000}, "stop", "100000 strings"),
        ({"stop_token_ids": [5, -1]}, "stop_token_ids[1]", "-1"),
        ({"stop_token_ids": [49152]}, "stop_token_ids[0]", "49152"),
        ({"stop_token_ids": [2**31 - 1]}, "stop_token_ids[0]", str(2**31 - 1)),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids", "65 ids"),
        ({"request_id": "x" * 129}, "request_id", "129 characters"),
        ({"request_id": "a\n"}, "request_id", "'a\\n'"),
        ({"request_id": "é"}, "request_id", "'é'"),
        *(
            ({field: value}, field, f"{value:g}, must be from -2 to 2")
            for field in ("frequency_penalty", "presence_penalty")
            for value in (math.nan, math.inf, -math.inf, 2.01, -2.01, 1e30)
        ),
        *(
            ({"repetition_penalty": value}, "repetition_penalty", f"{value:g}, must be from 0.01")
            for value in (math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 0.0099, 100.1, 1e30)
        ),
        ({"top_logprobs": -1}, "top_logprobs", "-1, must be from 0 to 20"),
        ({"top_logprobs": 21}, "top_logprobs", "21, must be from 0 to 20"),
        ({"top_logprobs": 10**6}, "top_logprobs", "1000000, must be from 0 to 20"),
    ],
)
def test_values_beyond_the_limits_are_refused(fields, field, value):
    error = refusal(check, **fields)
    assert error.field == field
    assert value in error.message


def test_stop_strings_need_a_tokenizer():
    assert refusal(check, has_tokenizer=False, stop=["x"]).field == "stop"


@pytest.mark.parametrize("bad", [-1, 49152, 2**31, 2**63 - 1, -(2**63)])
def test_prompt_ids_outside_the_vocabulary_are_refused_and_named(bad):
    ids = TokenIds(ids=[5, bad, 6]).ids
    error = refusal(check_prompt, "token_ids.ids", ids, 4, LIMITS)
    assert error.message == (
        f"token_ids.ids: token {bad} at index 1 is outside the model's vocabulary; an id must "
        "be from 0 to 49151"
    )
    good = check_prompt("token_ids.ids", TokenIds(ids=[0, 49151]).ids, 4, LIMITS)
    assert (good.dtype, good.tolist()) == (np.int32, [0, 49151])


def test_a_prompt_that_needs_all_usable_blocks_fits_and_one_more_token_does_not():
    assert len(check_prompt("text", [1] * 784, None, LIMITS)) == 784
    assert len(check_prompt("text", [1] * 784, 1, LIMITS)) == 784
    error = refusal(check_prompt, "text", [1] * 785, None, LIMITS)
    for number in ("785 tokens", "8192", "784", "49 usable blocks"):
        assert number in error.message


def test_a_prompt_that_fills_the_model_leaves_room_for_one_token():
    assert len(check_prompt("text", [1] * 99, None, SMALL_MODEL)) == 99
    error = refusal(check_prompt, "text", [1] * 100, None, SMALL_MODEL)
    assert error.field == "text"
    assert "the prompt is 100 tokens" in error.message
    assert "shorten it to 99" in error.message


def test_a_prompt_whose_growth_does_not_fit_is_refused_by_max_tokens():
    assert len(check_prompt("text", [1] * 700, 85, LIMITS)) == 700
    error = refusal(check_prompt, "text", [1] * 700, 86, LIMITS)
    assert error.field == "max_tokens"
    assert "86 with a prompt of 700 tokens is 786, more than 785 tokens" in error.message
    assert "use at most 85" in error.message


@pytest.mark.parametrize(
    ("request_", "field", "message"),
    [
        (GenerateRequest(), "prompt", "missing"),
        (GenerateRequest(text=""), "text", "0 tokens"),
        (GenerateRequest(token_ids=TokenIds()), "token_ids.ids", "0 tokens"),
        (GenerateRequest(chat=Chat()), "chat.messages", "at least one message"),
        (
            GenerateRequest(chat=Chat(messages=[ChatMessage(content="x")])),
            "chat.messages[0].role",
            "empty",
        ),
    ],
)
async def test_an_empty_prompt_is_refused(smollm2, request_, field, message):
    encoder = PromptEncoder(smollm2)
    with pytest.raises(CallError, match=message) as raised:
        await encoder.encode(request_, None, LIMITS)
    assert raised.value.field == field
    encoder.close()


async def test_a_space_is_a_prompt_and_so_is_nothing_where_a_begin_token_is_added(
    smollm2, byte_fallback
):
    for tokenizer, text, expected in ((smollm2, " ", (216,)), (byte_fallback, "", (1,))):
        encoder = PromptEncoder(tokenizer)
        assert await encoder.encode(GenerateRequest(text=text), None, LIMITS) == expected
        encoder.close()


async def test_text_that_cannot_fit_is_refused_before_it_is_encoded(smollm2, monkeypatch):
    encoder = PromptEncoder(smollm2)

    def never(*_):
        raise AssertionError("encoded")

    monkeypatch.setattr(smollm2, "encode_text", never)
    monkeypatch.setattr(smollm2, "encode_chat", never)
    text = "x" * 5_000_000
    chat = Chat(messages=[ChatMessage(role="user", content=text)])
    roles = Chat(messages=[ChatMessage(role="x" * 2_500_000, content="")] * 2)
    many = Chat(messages=[ChatMessage(role="x")] * 400_000)
    for request, size in (
        (GenerateRequest(text=text), 5_000_000),
        (GenerateRequest(chat=chat), 5_000_004),
        (GenerateRequest(chat=roles), 5_000_000),
        (GenerateRequest(chat=many), 400_000),
    ):
        with pytest.raises(CallError, match=f"^[a-z]+: {size} bytes of text cannot be 785 tokens"):
            await encoder.encode(request, None, LIMITS)
    encoder.close()


async def test_text_of_as_many_of_the_longest_token_as_fit_is_encoded(smollm2, smollm2_reference):
    longest = max(smollm2_reference.get_vocab(), key=lambda token: len(token.encode()))
    text = smollm2_reference.decode([smollm2_reference.token_to_id(longest)]) * 99
    encoder = PromptEncoder(smollm2)
    assert len(await encoder.encode(GenerateRequest(text=text), 1, SMALL_MODEL)) <= 99
    encoder.close()


async def test_a_server_without_a_tokenizer_takes_ids_only():
    encoder = PromptEncoder(None)
    ids = GenerateRequest(token_ids=TokenIds(ids=[3, 4]))
    assert (await encoder.encode(ids, None, LIMITS)).tolist() == [3, 4]
    with pytest.raises(CallError, match="text: the server has no tokenizer; send token_ids"):
        await encoder.encode(GenerateRequest(text="x"), None, LIMITS)
    encoder.close()


def test_an_error_carries_its_details():
    status = status_pb2.Status.FromString(invalid("seed", "-1").trailing_metadata()[0][1])
    assert (status.code, status.message) == (3, "seed: -1")
    bad = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(bad)
    assert [(v.field, v.description) for v in bad.field_violations] == [("seed", "seed: -1")]
    full = CallError(FailureKind.QUEUE_FULL, "full", retry_after=1.5)
    status = status_pb2.Status.FromString(full.trailing_metadata()[0][1])
    retry = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5
    assert CallError(FailureKind.INTERNAL, "x").trailing_metadata() == ()


def test_a_long_message_is_shortened_so_that_headers_can_carry_it():
    message = invalid("chat", "é" * 100_000).message
    assert LONGEST_MESSAGE - 2 < len(message.encode()) <= LONGEST_MESSAGE
    assert message.endswith("é ...")
