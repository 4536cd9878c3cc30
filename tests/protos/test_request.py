"""From arguments to the request on the wire."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from nanoserve import Client
from nanoserve.channel import channel_options, is_local
from nanoserve.errors import from_rpc
from nanoserve.request import GenerateOptions, build_request, check_timeout
from nanoserve.v1 import inference_pb2 as pb


def test_every_option_reaches_the_wire() -> None:
    request = build_request(
        "Hi",
        GenerateOptions(
            request_id="a",
            max_tokens=7,
            temperature=0.5,
            seed=2**63 - 1,
            stop=["x", "y"],
            stop_token_ids=[3, 4],
            ignore_eos=True,
            include_special_tokens=True,
            repetition_penalty=1.5,
            frequency_penalty=0.25,
            presence_penalty=-2,
            top_logprobs=20,
        ),
    )
    assert request == pb.GenerateRequest(
        request_id="a",
        text="Hi",
        max_tokens=7,
        temperature=0.5,
        seed=2**63 - 1,
        stop=["x", "y"],
        stop_token_ids=[3, 4],
        ignore_eos=True,
        include_special_tokens=True,
        repetition_penalty=1.5,
        frequency_penalty=0.25,
        presence_penalty=-2,
        top_logprobs=20,
    )


def test_every_field_of_the_wire_is_an_option() -> None:
    fields = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
    assert fields - {"text", "chat"} == GenerateOptions.__annotations__.keys() - {"messages"}


def test_zero_is_sent_and_none_is_left_to_the_server() -> None:
    zeros = GenerateOptions(temperature=0, seed=0, frequency_penalty=0, top_logprobs=0)
    request = build_request("Hi", GenerateOptions(**zeros, max_tokens=None))
    assert all(request.HasField(name) for name in zeros)
    assert not request.HasField("max_tokens")


def test_messages_become_a_chat() -> None:
    request = build_request(None, GenerateOptions(messages=[{"role": "user", "content": "Hi"}]))
    assert request.chat == pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")])


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("", {}, "text"),
        (None, {"token_ids": []}, "token_ids"),
        (None, {"messages": []}, "chat"),
    ],
)
def test_an_empty_prompt_is_sent_for_the_server_to_refuse(
    prompt: str | None, options: Any, field: str
) -> None:
    assert build_request(prompt, options).WhichOneof("prompt") == field


def test_one_stop_string_may_stand_alone() -> None:
    assert build_request("Hi", GenerateOptions(stop="END")).stop == ["END"]


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**63 - 1])
def test_a_token_id_outside_any_vocabulary_is_sent_as_it_is(token_id: int) -> None:
    assert build_request(None, GenerateOptions(token_ids=[token_id])).token_ids.ids == [token_id]


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        (None, {}, TypeError, "exactly one of prompt, token_ids and messages, got none"),
        ("a", {"token_ids": [1]}, TypeError, "got prompt and token_ids"),
        ("a", {"top_q": 1}, TypeError, "unknown options of generate: top_q"),
        ("a", {"max_tokens": 2**31}, ValueError, "max_tokens = 2147483648"),
        ("a", {"seed": "x"}, TypeError, "seed = 'x'"),
        ("a", {"stop": [1]}, TypeError, "stop cannot be sent"),
        (None, {"token_ids": [1.5]}, TypeError, "float"),
        (None, {"messages": [{"role": "user"}]}, TypeError, r"messages\[0\] must have role and"),
        (None, {"messages": [{"role": "user", "content": 1}]}, TypeError, r"messages\[0\]"),
        # What Python makes of an argument that is no UTF-8.
        ("a\udcff", {}, ValueError, r"^text = 'a\\udcff' cannot be sent: 'utf-8' codec"),
        ("\udcff" * 999, {}, ValueError, r"^text = .{0,90} cannot be sent"),
        ("a", {"request_id": "\udcff"}, ValueError, "^request_id = "),
        ("a", {"stop": ["\udcff"]}, ValueError, "^stop cannot be sent: 'utf-8' codec"),
        (
            *(None, {"messages": [{"role": "user", "content": "\udcff"}]}, ValueError),
            r"^messages\[0\] cannot be sent: 'utf-8' codec",
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(
    prompt: str | None, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_request(prompt, options)


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), 1e9])
def test_a_timeout_that_grpc_takes_for_one_that_has_passed_is_refused(timeout: float) -> None:
    with Client("127.0.0.1:1") as client:
        for call in (partial(client.generate, "a"), client.status):
            with pytest.raises(ValueError, match=f"^timeout = {timeout} cannot be sent: must be"):
                call(timeout=timeout)


@pytest.mark.parametrize("timeout", [None, 0, -1.0, 9e8])
def test_other_timeouts_are_for_grpc_to_keep(timeout: float | None) -> None:
    check_timeout(timeout)


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:50051", True),
        ("127.8.8.8:1", True),
        ("[::1]:50051", True),
        ("localhost:50051", True),
        ("unix:/run/x.sock", True),
        ("10.0.0.1:50051", False),
        ("llm.example.org:443", False),
    ],
)
def test_no_proxy_stands_between_us_and_this_machine(address: str, local: bool) -> None:
    assert is_local(address) is local
    assert (("grpc.enable_http_proxy", 0) in channel_options(address)) is local


def test_damaged_error_details_do_not_hide_the_error() -> None:
    import grpc

    class Failed:
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.INTERNAL

        def details(self) -> str:
            return "broken"

        def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
            return (("grpc-status-details-bin", b"\xff\xff"),)

    error = from_rpc(Failed())
    assert str(error) == "INTERNAL: broken"
    assert error.violations == ()
