"""Checks of a request, each before any work is done for it. The rules are those that
inference.proto's comments state."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoserve.v1 import inference_pb2
from scheduler.api.errors import invalid
from scheduler.core.front_end import Limits
from scheduler.core.penalties import Penalties

LONGEST_REQUEST_ID = 128
MOST_STOP_STRINGS = 16
LONGEST_STOP_STRING = 256
MOST_STOP_TOKENS = 64
# 0.01 as a 32-bit float is a little less than 0.01.
_HUNDREDTH: float = struct.unpack("<f", struct.pack("<f", 0.01))[0]
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = _HUNDREDTH, 100.0
LOWEST_REPETITION_PENALTY, HIGHEST_REPETITION_PENALTY = _HUNDREDTH, 100.0
LARGEST_PENALTY = 2.0  # frequency and presence, either way
MOST_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a request asks for besides its prompt. `max_tokens` None: as many as fit."""

    request_id: str
    max_tokens: int | None
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    include_special_tokens: bool
    penalties: Penalties
    top_logprobs: int | None


def check_parameters(
    request: inference_pb2.GenerateRequest, limits: Limits, has_tokenizer: bool
) -> Parameters:
    """Raises CallError for the first field that can never work."""
    if request.stop and not has_tokenizer:
        raise invalid("stop", "the server has no tokenizer, so no text; use stop_token_ids")
    return Parameters(
        request_id=_request_id(request.request_id),
        max_tokens=_max_tokens(request, limits),
        temperature=_temperature(request.temperature) if request.HasField("temperature") else 1.0,
        seed=_seed(request.seed) if request.HasField("seed") else None,
        stop=_stop(request.stop),
        stop_token_ids=_stop_token_ids(request.stop_token_ids, limits.vocab_size),
        ignore_eos=request.ignore_eos,
        include_special_tokens=request.include_special_tokens,
        penalties=_penalties(request),
        top_logprobs=_top_logprobs(request, limits.vocab_size),
    )


def check_text_size(field: str, num_bytes: int, longest_token: int, limits: Limits) -> None:
    """Refuses text that cannot fit before time is spent on encoding it."""
    most = limits.max_request_tokens * longest_token
    if num_bytes > most:
        raise invalid(
            field,
            f"{num_bytes} bytes of text cannot be {_room(limits)} or fewer, since a token is at "
            f"most {longest_token} bytes; shorten the prompt",
        )


def check_chat(chat: inference_pb2.Chat) -> None:
    if not chat.messages:
        raise invalid("chat.messages", "empty; give at least one message")
    for index, message in enumerate(chat.messages):
        if not message.role:
            raise invalid(
                f"chat.messages[{index}].role", 'empty; give "system", "user" or "assistant"'
            )


def check_prompt(
    field: str, ids: Sequence[int], max_tokens: int | None, limits: Limits
) -> np.ndarray:
    """The prompt as int32 [n], if it and the output fit. Raises CallError."""
    if not ids:
        raise invalid(field, "the prompt is empty: 0 tokens; give at least 1")
    most = limits.max_request_tokens
    if len(ids) + 1 > most:
        raise invalid(
            field,
            f"the prompt is {len(ids)} tokens, and with 1 token of output it must fit in "
            f"{_room(limits)}; shorten it to {most - 1}",
        )
    if max_tokens is not None and len(ids) + max_tokens > most:
        raise invalid(
            "max_tokens",
            f"{max_tokens} with a prompt of {len(ids)} tokens is {len(ids) + max_tokens}, more "
            f"than {_room(limits)}; use at most {most - len(ids)}, or leave it out",
        )
    # A slice of a message's field is a list, which is read several times as fast.
    checked = np.array(ids[:], np.int64)
    unsigned = checked.view(np.uint64)  # a negative id is a large one without its sign
    if int(unsigned.max()) >= limits.vocab_size:
        index = int((unsigned >= limits.vocab_size).argmax())
        raise invalid(
            field,
            f"token {ids[index]} at index {index} is outside the model's vocabulary; an id "
            f"must be from 0 to {limits.vocab_size - 1}",
        )
    return checked.astype(np.int32)


def _room(limits: Limits) -> str:
    """Says where the limit comes from."""
    slots = limits.usable_blocks * limits.block_size
    return (
        f"{limits.max_request_tokens} tokens (max_model_len {limits.max_model_len}; the K/V pool "
        f"holds {slots} in {limits.usable_blocks} usable blocks, and the last token needs no slot)"
    )


def _request_id(request_id: str) -> str:
    if not request_id:
        return uuid.uuid4().hex
    if len(request_id) > LONGEST_REQUEST_ID:
        raise invalid(
            "request_id", f"{len(request_id)} characters, at most {LONGEST_REQUEST_ID} are allowed"
        )
    if not all(" " <= character <= "~" for character in request_id):
        raise invalid("request_id", f"{request_id!r} has characters other than printable ASCII")
    return request_id


def _max_tokens(request: inference_pb2.GenerateRequest, limits: Limits) -> int | None:
    if not request.HasField("max_tokens"):
        return None
    if request.max_tokens < 1:
        raise invalid(
            "max_tokens",
            f"{request.max_tokens}, must be at least 1; leave it out for as many as fit",
        )
    if request.max_tokens >= limits.max_request_tokens:
        raise invalid(
            "max_tokens",
            f"{request.max_tokens} with a prompt of at least 1 token is more than {_room(limits)}; "
            f"use at most {limits.max_request_tokens - 1}, or leave it out",
        )
    return request.max_tokens


def _temperature(value: float) -> float:
    if value == 0:
        return 0.0  # -0.0 too
    if not LOWEST_TEMPERATURE <= value <= HIGHEST_TEMPERATURE:  # NaN fails this
        raise invalid(
            "temperature", f"{value:g}, must be 0, or from 0.01 to {HIGHEST_TEMPERATURE:g}"
        )
    return value


def _penalties(request: inference_pb2.GenerateRequest) -> Penalties:
    repetition = request.repetition_penalty if request.HasField("repetition_penalty") else 1.0
    if not LOWEST_REPETITION_PENALTY <= repetition <= HIGHEST_REPETITION_PENALTY:  # nor NaN
        raise invalid(
            "repetition_penalty",
            f"{repetition:g}, must be from 0.01 to {HIGHEST_REPETITION_PENALTY:g}; "
            f"1, or leaving it out, changes nothing",
        )
    return Penalties(
        repetition,
        _additive_penalty("frequency_penalty", request.frequency_penalty),
        _additive_penalty("presence_penalty", request.presence_penalty),
    )


def _additive_penalty(field: str, value: float) -> float:
    if not -LARGEST_PENALTY <= value <= LARGEST_PENALTY:  # NaN fails this
        raise invalid(
            field,
            f"{value:g}, must be from {-LARGEST_PENALTY:g} to {LARGEST_PENALTY:g}; 0, or leaving "
            f"it out, changes nothing",
        )
    return value + 0.0  # -0.0 is 0


def _top_logprobs(request: inference_pb2.GenerateRequest, vocab_size: int) -> int | None:
    if not request.HasField("top_logprobs"):
        return None
    most = min(MOST_TOP_LOGPROBS, vocab_size)
    if not 0 <= request.top_logprobs <= most:
        raise invalid(
            "top_logprobs",
            f"{request.top_logprobs}, must be from 0 to {most}; leave it out for no "
            f"log-probabilities",
        )
    return request.top_logprobs


def _seed(value: int) -> int:
    if value < 0:
        raise invalid("seed", f"{value}, must be from 0 to {2**63 - 1}")
    return value


def _stop(strings: Sequence[str]) -> tuple[str, ...]:
    if len(strings) > MOST_STOP_STRINGS:
        raise invalid("stop", f"{len(strings)} strings, at most {MOST_STOP_STRINGS} are allowed")
    for index, string in enumerate(strings):
        if not 1 <= len(string) <= LONGEST_STOP_STRING:
            raise invalid(
                f"stop[{index}]",
                f"{len(string)} characters, must be from 1 to {LONGEST_STOP_STRING}",
            )
    return tuple(strings)


def _stop_token_ids(ids: Sequence[int], vocab_size: int) -> frozenset[int]:
    if len(ids) > MOST_STOP_TOKENS:
        raise invalid("stop_token_ids", f"{len(ids)} ids, at most {MOST_STOP_TOKENS} are allowed")
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise invalid(
                f"stop_token_ids[{index}]",
                f"{token_id} is outside the model's vocabulary; an id must be from 0 to "
                f"{vocab_size - 1}",
            )
    return frozenset(ids)
