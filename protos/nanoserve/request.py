"""From the arguments of `generate` to a GenerateRequest."""

from __future__ import annotations

import operator
import reprlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

from nanoserve.v1 import inference_pb2 as pb


class Message(TypedDict):
    """One message of a conversation. `role` is "system", "user" or "assistant", or
    another that the model's template knows."""

    role: str
    content: str


class GenerateOptions(TypedDict, total=False):
    """What may be asked of a generation. None, or left out, is the server's default;
    inference.proto tells ranges and defaults, and the server checks them."""

    token_ids: Sequence[int] | None  # the prompt as token ids
    messages: Sequence[Message] | None  # the prompt as a conversation
    request_id: str | None  # default: a random one
    max_tokens: int | None  # default: as many as model and pool have room for
    temperature: float | None  # 0 takes the most likely token; default: 1
    seed: int | None  # default: a new one each time
    stop: str | Sequence[str] | None  # the output ends before any of these
    stop_token_ids: Sequence[int] | None  # the output ends with any of these
    ignore_eos: bool  # go on past the model's end tokens
    include_special_tokens: bool  # show special tokens in the text
    repetition_penalty: float | None  # of tokens in prompt and output; default: 1, none
    frequency_penalty: float | None  # for each time in the output; default: 0, none
    presence_penalty: float | None  # of tokens in the output; default: 0, none
    top_logprobs: int | None  # log-probabilities, with so many alternatives; default: none


# Seconds. gRPC takes what it cannot count, infinity among it, for a deadline that has passed.
LONGEST_TIMEOUT = 1e9
_SCALARS = (
    *("max_tokens", "temperature", "seed", "ignore_eos", "include_special_tokens"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "top_logprobs"),
)


def build_request(prompt: str | None, options: GenerateOptions) -> pb.GenerateRequest:
    """The request for `prompt` (text) or the prompt in `options`.

    Raises TypeError for an unknown option, a wrong type, or not exactly one prompt,
    and ValueError for a number or text that the wire cannot carry. What is merely out of
    range goes to the server, which names the limit.
    """
    values = cast(dict[str, Any], options)
    unknown = values.keys() - GenerateOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options of generate: {', '.join(sorted(unknown))}")
    request = pb.GenerateRequest()
    _set(request, "request_id", values.get("request_id") or uuid.uuid4().hex)
    _set_prompt(request, prompt, options)
    for name in _SCALARS:
        if (value := values.get(name)) is not None:
            _set(request, name, value)
    stop = options.get("stop") or ()
    _extend(request.stop, "stop", [stop] if isinstance(stop, str) else stop)
    _extend(request.stop_token_ids, "stop_token_ids", options.get("stop_token_ids") or ())
    return request


def check_timeout(timeout: float | None) -> None:
    """Raises ValueError for seconds that gRPC cannot count."""
    if timeout is not None and not timeout < LONGEST_TIMEOUT:  # NaN fails this
        raise ValueError(
            f"timeout = {timeout!r} cannot be sent: must be below {LONGEST_TIMEOUT:g} seconds; "
            "leave it out for the server's limit"
        )


def _set_prompt(request: pb.GenerateRequest, prompt: str | None, options: GenerateOptions) -> None:
    token_ids, messages = options.get("token_ids"), options.get("messages")
    given = [
        name
        for name, value in (("prompt", prompt), ("token_ids", token_ids), ("messages", messages))
        if value is not None
    ]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise TypeError(f"give exactly one of prompt, token_ids and messages, got {got}")
    if prompt is not None:
        _set(request, "text", prompt)
    elif token_ids is not None:
        request.token_ids.SetInParent()  # an empty list is a prompt, for the server to refuse
        _extend(request.token_ids.ids, "token_ids", [operator.index(item) for item in token_ids])
    elif messages is not None:
        request.chat.SetInParent()
        for index, message in enumerate(messages):
            request.chat.messages.append(_chat_message(index, message))


def _chat_message(index: int, message: Mapping[str, Any]) -> pb.ChatMessage:
    if set(message) != {"role", "content"}:
        raise TypeError(f"messages[{index}] must have role and content, got {sorted(message)}")
    try:
        return pb.ChatMessage(role=message["role"], content=message["content"])
    except TypeError as error:
        raise TypeError(f"messages[{index}]: role and content must be str: {error}") from None
    except ValueError as error:
        raise ValueError(f"messages[{index}] cannot be sent: {error}") from None


def _set(request: pb.GenerateRequest, name: str, value: Any) -> None:
    try:
        setattr(request, name, value)
    except (TypeError, ValueError) as error:
        raise _unsendable(f"{name} = {reprlib.repr(value)}", error) from None


def _extend(target: Any, name: str, values: Sequence[Any]) -> None:
    try:
        target.extend(values)
    except (TypeError, ValueError) as error:
        raise _unsendable(name, error) from None


def _unsendable(what: str, error: TypeError | ValueError) -> TypeError | ValueError:
    """Not of `error`'s own type: a UnicodeEncodeError is not made of a message."""
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{what} cannot be sent: {error}")
