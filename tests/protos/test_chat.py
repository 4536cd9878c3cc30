"""`nanoserve chat`: the conversation that is sent, and what a person may do to it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator

import grpc
from google.rpc import error_details_pb2

from nanoserve.v1 import inference_pb2 as pb
from tests.protos.command import command, environment, nanoserve
from tests.protos.scripted_server import ScriptedServer, fail, say
from tests.waiting import SECONDS


def contents(request: pb.GenerateRequest) -> list[str]:
    return [message.content for message in request.chat.messages]


def test_each_question_is_sent_with_all_that_was_said(server: ScriptedServer) -> None:
    done = nanoserve(
        "chat", "--system", "Be brief.", "--address", server.address, stdin="one\n\ntwo\n"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("Hello world\nHello world\n", "", 0)
    assert [contents(request) for request in server.requests] == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "Hello world", "two"],
    ]
    roles = [message.role for message in server.requests[1].chat.messages]
    assert roles == ["system", "user", "assistant", "user"]


def test_penalties_go_with_each_question(server: ScriptedServer) -> None:
    flags = "--repetition-penalty 1.5 --frequency-penalty 0.25 --presence-penalty -1"
    nanoserve("chat", *flags.split(), "--address", server.address, stdin="one\ntwo\n")
    assert [
        (one.repetition_penalty, one.frequency_penalty, one.presence_penalty)
        for one in server.requests
    ] == [(1.5, 0.25, -1.0)] * 2


def test_reset_forgets_all_but_the_system_message(server: ScriptedServer) -> None:
    nanoserve(
        "chat", "--system", "S", "--address", server.address, stdin="one\n/reset\ntwo\n/quit\nno\n"
    )
    assert [contents(request) for request in server.requests] == [["S", "one"], ["S", "two"]]


def test_help_asks_nothing_of_the_server(server: ScriptedServer) -> None:
    done = nanoserve("chat", "--address", server.address, stdin="/help\n")
    assert "/reset" in done.stderr
    assert server.requests == []


def test_what_looks_like_a_command_and_is_none_goes_to_nobody(server: ScriptedServer) -> None:
    typed = "/rest\n/reset all\n/quit \n"
    done = nanoserve("chat", "--address", server.address, stdin=typed)
    assert done.stderr == (
        "(no command '/rest': /help lists them)\n(no command '/reset all': /help lists them)\n"
    )
    assert (server.requests, done.returncode) == ([], 0)


def test_a_question_may_begin_with_a_slash(server: ScriptedServer) -> None:
    nanoserve("chat", "--address", server.address, stdin="/etc/passwd: what is it?\n/ or \\?\n")
    assert [contents(request)[-1] for request in server.requests] == [
        "/etc/passwd: what is it?",
        "/ or \\?",
    ]


def test_room_for_the_answer_is_half_the_context_of_a_small_model(server: ScriptedServer) -> None:
    nanoserve("chat", "--address", server.address, stdin="one\n")
    server.status.max_model_len = 100_000
    server.status.usable_blocks = 100_000
    nanoserve("chat", "--address", server.address, stdin="one\n")
    nanoserve("chat", "--max-tokens", "9", "--address", server.address, stdin="one\n")
    assert [request.max_tokens for request in server.requests] == [32, 512, 9]


def refuse_more_than(most: int, field: str) -> object:
    """A handler that refuses a conversation of more than `most` messages, as too long."""
    violation = error_details_pb2.BadRequest.FieldViolation(field=field)
    refuse = fail(
        grpc.StatusCode.INVALID_ARGUMENT,
        f"{field}: too long",
        error_details_pb2.BadRequest(field_violations=[violation]),
    )

    def handler(
        request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateResponse]:
        long = len(request.chat.messages) > most
        return (refuse if long else say("ok"))(request, context)

    return handler


def test_a_conversation_too_long_loses_its_oldest_exchanges(server: ScriptedServer) -> None:
    server.handler = refuse_more_than(4, "max_tokens")  # type: ignore[assignment]
    done = nanoserve("chat", "--system", "S", "--address", server.address, stdin="1\n2\n3\n4\n")
    assert done.returncode == 0
    assert done.stderr == "(too long: the oldest exchange forgotten)\n" * 2
    served = [contents(request) for request in server.requests if len(request.chat.messages) <= 4]
    assert served == [
        ["S", "1"],
        ["S", "1", "ok", "2"],
        ["S", "2", "ok", "3"],
        ["S", "3", "ok", "4"],
    ]
    # What is forgotten is not sent again.
    assert max(len(request.chat.messages) for request in server.requests) == 6


def test_a_question_too_long_by_itself_is_an_error(server: ScriptedServer) -> None:
    server.handler = refuse_more_than(0, "chat")  # type: ignore[assignment]
    done = nanoserve("chat", "--address", server.address, stdin="one\n")
    assert done.stderr == "nanoserve: INVALID_ARGUMENT: chat: too long\n"
    assert done.returncode == 1


def test_another_refusal_forgets_nothing(server: ScriptedServer) -> None:
    server.handler = refuse_more_than(1, "temperature")  # type: ignore[assignment]
    done = nanoserve("chat", "--address", server.address, stdin="one\ntwo\n")
    assert done.stderr == "nanoserve: INVALID_ARGUMENT: temperature: too long\n"
    assert [len(request.chat.messages) for request in server.requests] == [1, 3]


class Terminal:
    """The command on a terminal of its own; expect() reads until a text appears."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self._unread = b""
        self.process = subprocess.Popen(
            command(*arguments),
            env=environment(TERM="dumb"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> str:
        """What the terminal showed up to the end of `text`; the rest is kept."""
        wanted = text.encode()
        while wanted not in self._unread:
            ready, _, _ = select.select([self._master], [], [], 30)
            assert ready, f"{text!r} did not come; instead: {self._unread!r}"
            self._unread += os.read(self._master, 1000)
        before, _, self._unread = self._unread.partition(wanted)
        return (before + wanted).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


def test_on_a_terminal_ctrl_c_stops_the_answer_and_ctrl_d_ends(server: ScriptedServer) -> None:
    server.handler = server.hold
    terminal = Terminal("chat", "--address", server.address)
    try:
        terminal.expect("> ")
        terminal.type("one\n")
        terminal.expect("Hel")
        terminal.process.send_signal(signal.SIGINT)
        terminal.expect("(stopped)")
        terminal.expect("> ")
        assert server.cancelled.wait(SECONDS)
        server.handler = say("\x1b[2Jdone")
        terminal.type("two\n")
        # An escape sequence in an answer does not reach the terminal.
        assert "\x1b[2J" not in terminal.expect("�[2Jdone")
        terminal.expect("> ")
        # What came before the stop is part of the conversation.
        assert contents(server.requests[1]) == ["one", "Hel", "two"]
        server.handler = fail(grpc.StatusCode.UNAVAILABLE, "the server is draining")
        terminal.type("three\n")
        terminal.expect("UNAVAILABLE: the server is draining")
        terminal.expect("> ")
        terminal.type("\x04")
        assert terminal.process.wait(SECONDS) == 0
    finally:
        terminal.close()
