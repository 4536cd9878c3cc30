"""`nanoserve generate` and `nanoserve status` as processes, and how they fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import grpc
import pytest

from nanoserve.v1 import inference_pb2 as pb
from tests.protos.command import command, environment, nanoserve
from tests.protos.scripted_server import ScriptedServer, fail, say
from tests.waiting import SECONDS


def test_generate_prints_the_answer_to_a_chat_message(server: ScriptedServer) -> None:
    done = nanoserve("generate", "--address", server.address, "--system", "Be brief.", "Hi")
    assert (done.stdout, done.stderr, done.returncode) == ("Hello world\n", "", 0)
    roles = [(message.role, message.content) for message in server.requests[0].chat.messages]
    assert roles == [("system", "Be brief."), ("user", "Hi")]


def test_generate_raw_sends_the_text_and_every_flag(server: ScriptedServer) -> None:
    flags = "--raw --max-tokens 5 --temperature 0 --seed 7 --stop A --stop B --timeout 9 "
    flags += "--repetition-penalty 1.5 --frequency-penalty -0.5 --presence-penalty 2"
    done = nanoserve(
        "generate", *flags.split(), "-", stdin="two\nlines", NANOSERVE_ADDRESS=server.address
    )
    assert done.stdout == "Hello world\n"
    request = server.requests[0]
    assert request == pb.GenerateRequest(
        request_id=request.request_id,
        text="two\nlines",
        max_tokens=5,
        temperature=0,
        seed=7,
        stop=["A", "B"],
        repetition_penalty=1.5,
        frequency_penalty=-0.5,
        presence_penalty=2,
    )
    assert server.deadlines[0] is not None
    assert 5 < server.deadlines[0] <= 1.02 * 9  # gRPC sends it rounded up by as much as 1 %


def test_flags_left_out_are_left_to_the_server_but_for_the_temperature(
    server: ScriptedServer,
) -> None:
    nanoserve("generate", "--address", server.address, "Hi")
    request = server.requests[0]
    set_fields = {field.name for field, _ in request.ListFields()}
    assert set_fields == {"request_id", "chat", "temperature"}
    assert request.temperature == pytest.approx(0.7), "the command has a default of its own"
    # Without a deadline gRPC tells the longest time that it can.
    assert server.deadlines[0] is None or server.deadlines[0] > 1e6


def test_generate_streams_while_the_server_is_still_at_work(server: ScriptedServer) -> None:
    server.handler = server.hold
    with subprocess.Popen(
        command("generate", "--address", server.address, "Hi"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"Hel"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    assert server.cancelled.wait(SECONDS)


def test_a_closed_pipe_ends_the_command_quietly(server: ScriptedServer) -> None:
    server.handler = say(*["x" * 10_000] * 50)
    with subprocess.Popen(
        command("generate", "--address", server.address, "Hi"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.wait(SECONDS) == 1
        assert process.stderr.read() == b""


def test_stats_go_to_stderr(server: ScriptedServer) -> None:
    done = nanoserve("generate", "--address", server.address, "--stats", "Hi")
    assert done.stdout == "Hello world\n"
    assert re.fullmatch(
        r"time to first token \d+\.\d{3} s, [\d.]+ tokens/s, 3 tokens\n", done.stderr
    )


def test_top_logprobs_prints_a_line_for_each_token(server: ScriptedServer) -> None:
    def message(text: str, *tokens: int) -> pb.GenerateResponse:
        top = [pb.TopLogprob(token_id=7, logprob=-0.25), pb.TopLogprob(token_id=49151, logprob=-9)]
        logprobs = [pb.TokenLogprobs(logprob=-i, top=top) for i in range(len(tokens))]
        return pb.GenerateResponse(text=text, token_ids=tokens, logprobs=logprobs)

    end = pb.GenerateResponse(text="!", finish_reason=pb.FINISH_REASON_LENGTH)
    pieces = [message(" a\n\x1b", 5), message("", 600, 7), message(" a longer piece of text", 8)]
    server.handler = lambda _request, _context: iter([*pieces, end])
    done = nanoserve("generate", "--address", server.address, "--top-logprobs", "2", "Hi")
    assert (done.stderr, done.returncode) == ("", 0)
    likely = "        7   -0.250    49151   -9.000"
    assert done.stdout.splitlines() == [
        "text                 token  logprob      %   most likely tokens and their logprobs",
        f'" a\\n\\u001b"             5    0.000  100.0{likely}',
        f"                       600    0.000  100.0{likely}",
        f"                         7   -1.000   36.8{likely}",
        '" a longer piece of text"',
        f"                         8    0.000  100.0{likely}",
        '"!"',
    ]
    assert server.requests[0].top_logprobs == 2


def test_a_server_that_knows_no_log_probabilities_is_told_of(server: ScriptedServer) -> None:
    done = nanoserve("generate", "--address", server.address, "--top-logprobs", "0", "Hi")
    assert done.stderr == (
        "nanoserve: the server sends no log-probabilities: leave out --top-logprobs\n"
    )
    assert (done.stdout, done.returncode) == ("", 2)


def test_a_failed_call_is_one_line_and_a_status_of_1(server: ScriptedServer) -> None:
    server.handler = fail(grpc.StatusCode.INVALID_ARGUMENT, "seed: -1,\nmust be 0", after=("He",))
    done = nanoserve("generate", "--address", server.address, "Hi")
    assert done.stdout == "He\n"
    assert done.stderr == "nanoserve: INVALID_ARGUMENT: seed: -1, must be 0\n"
    assert done.returncode == 1


@pytest.mark.parametrize("arguments", [["generate", "Hi"], ["status"], ["chat"]])
def test_no_server_is_one_line_that_says_what_to_do(arguments: list[str], nobody: str) -> None:
    done = nanoserve(*arguments, "--address", nobody, stdin="Hi\n")
    assert done.stderr == (
        f"nanoserve: UNAVAILABLE: no server answers at {nobody}; start one with `make serve`\n"
    )
    assert (done.stdout, done.returncode) == ("", 1)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["generate"],
        ["generate", "--max-tokens", "many", "Hi"],
        ["generate", "--raw", "--chat", "Hi"],
        ["generate", "--raw", "--system", "Be brief.", "Hi"],
        ["generate", "--max-tokens", str(2**40), "Hi"],
    ],
)
def test_wrong_usage_is_a_status_of_2_without_a_traceback(arguments: list[str]) -> None:
    done = nanoserve(*arguments)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_status_is_a_table(server: ScriptedServer) -> None:
    done = nanoserve("status", "--address", server.address)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"server       {server.address}",
        "ready        yes",
        "up           1 h 2 min 5 s",
        "model        tiny",
        "worker       cpu, incarnation 00000000000000ff",
        "context      64 tokens",
        "vocabulary   256 tokens",
        "K/V pool     7 of 10 blocks free, 16 tokens each (160 tokens in all)",
        "requests     0 running (at most 4), 0 waiting",
        "steps        0 answered, 0 in flight",
        "tokens       0 prompt, 0 output, 0 discarded",
        "preemptions  0",
    ]


def test_status_tells_what_the_prefix_cache_found_once_it_was_asked(
    server: ScriptedServer,
) -> None:
    server.status.prefix_queries, server.status.prefix_hits = 4321, 1000
    server.status.cached_blocks = 3
    done = nanoserve("status", "--address", server.address)
    line = "prefix cache  1,000 of 4,321 prompt tokens found (23 %), 3 of the free blocks kept"
    assert line in done.stdout.splitlines()


def test_status_of_a_server_without_worker_is_1_and_says_why(server: ScriptedServer) -> None:
    server.status = pb.GetStatusResponse(reason="waiting for the worker", model="tiny")
    done = nanoserve("status", "--address", server.address)
    assert done.returncode == 1
    assert "ready        no: waiting for the worker" in done.stdout
    assert "worker       none yet" in done.stdout
    assert "K/V" not in done.stdout


def test_status_as_json_has_every_field(server: ScriptedServer) -> None:
    done = nanoserve("status", "--json", "--address", server.address)
    fields = json.loads(done.stdout)
    assert list(fields) == [field.name for field in pb.GetStatusResponse.DESCRIPTOR.fields]
    assert (fields["model"], fields["free_blocks"]) == ("tiny", 7)


def test_status_with_rows_tells_how_far_each_is(server: ScriptedServer) -> None:
    server.status.rows.add(
        row=0,
        request_id="first",
        prompt_tokens=1000,
        computed_tokens=1150,
        output_tokens=151,
        max_tokens=2000,
        blocks=73,
        running_seconds=2.5,
    )
    server.status.rows.add(
        row=12, request_id="2", prompt_tokens=40, computed_tokens=7, max_tokens=9, blocks=1
    )
    done = nanoserve("status", "--rows", "--address", server.address)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-4:] == [
        "",
        "row  request       prompt     output  blocks     time",
        "  0  first    1,000/1,000  151/2,000      73   2.50 s",
        " 12  2               7/40        0/9       1  0.00 ms",
    ]
    assert server.status_requests == [pb.GetStatusRequest(include_rows=True)]
    fields = json.loads(nanoserve("status", "--rows", "--json", "--address", server.address).stdout)
    assert [row["request_id"] for row in fields["rows"]] == ["first", "2"]


def test_status_with_rows_says_if_there_are_none_and_why(server: ScriptedServer) -> None:
    done = nanoserve("status", "--rows", "--address", server.address)
    assert done.stdout.endswith("\n\nno request is running\n")
    server.status.missing_reason = "the engine did not answer within 1 s"
    done = nanoserve("status", "--rows", "--address", server.address)
    assert done.stdout.endswith("\n\nthe engine did not answer within 1 s\n")
