"""Token ids to text, one at a time, exactly as the whole list would decode."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import Protocol

# A longer run of byte tokens is let out character by character. Its end decides
# whether it is text at all, but a script that the vocabulary lacks must stream.
LONGEST_HELD_RUN = 64


class Detokenizer(Protocol):
    """The text of one output, in pieces that joined equal the decode of all ids.

    A piece never ends inside a character. Bytes that are no character become U+FFFD.
    """

    def push(self, token_id: int) -> str:
        """The text that this token makes certain; may be empty, may be of earlier
        tokens."""
        ...

    def finish(self) -> str:
        """The rest of the text, once there are no more tokens."""
        ...


class NoText:
    """For a model without a tokenizer."""

    def push(self, token_id: int) -> str:  # noqa: ARG002
        return ""

    def finish(self) -> str:
        return ""


class ByteLevelDetokenizer:
    """For vocabularies of byte strings: the text is the UTF-8 decode of all bytes.

    `bytes_of` maps a token id to its bytes, none for a token without text.
    """

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, token_id: int) -> str:
        return self._decode(self._bytes_of(token_id))

    def finish(self) -> str:
        return self._decode(b"", True)


class PieceDetokenizer:
    """For vocabularies of text pieces with single bytes to fall back on.

    `piece_of` maps a token id to its text, to a byte's value, or to None for a token
    without text. A run of bytes is decoded as a whole: if any of it is no UTF-8,
    every byte of it is U+FFFD. So its text waits for the token after it.

    The decoder drops up to `strip` leading `strip_character`s, which belong to the
    beginning of the prompt; what the prompt used up is not dropped again.
    """

    def __init__(
        self,
        piece_of: Callable[[int], str | int | None],
        strip_character: str = " ",
        strip: int = 0,
        prompt_ids: Iterable[int] = (),
    ) -> None:
        self._piece_of = piece_of
        self._strip_character = strip_character
        self._strip = strip
        self._run = bytearray()
        self._long_run: codecs.IncrementalDecoder | None = None
        self._skip_prompt(prompt_ids)

    def push(self, token_id: int) -> str:
        piece = self._piece_of(token_id)
        if isinstance(piece, str):
            text = self._end_run() + piece if self._run or self._long_run else piece
            return self._stripped(text) if self._strip else text
        if piece is None:
            return ""
        return self._extend_run(piece)

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _skip_prompt(self, prompt_ids: Iterable[int]) -> None:
        for token_id in prompt_ids:
            if not self._strip:
                break
            self.push(int(token_id))  # it may be of an array
        self.finish()

    def _extend_run(self, byte: int) -> str:
        if self._long_run is not None:
            return self._stripped(self._long_run.decode(bytes((byte,))))
        self._run.append(byte)
        if len(self._run) <= LONGEST_HELD_RUN:
            return ""
        self._long_run = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._long_run.decode(bytes(self._run))
        self._run.clear()
        return self._stripped(text)

    def _end_run(self) -> str:
        if self._long_run is not None:
            text = self._long_run.decode(b"", True)
            self._long_run = None
            return text
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _stripped(self, text: str) -> str:
        """`text` without what is still to be dropped; any other character ends that."""
        rest = text
        while self._strip and rest.startswith(self._strip_character):
            rest = rest[1:]
            self._strip -= 1
        if rest:
            self._strip = 0
        return rest


class WindowDetokenizer:
    """For any other decoder: decodes the last few tokens again with each new one.

    `decode` maps a list of ids to text. Joined pieces equal the decode of all ids if a
    token's text depends on no more than the tokens of the piece before it.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._done = 0  # tokens of the window whose text is out

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        before, text = self._texts()
        if len(text) <= len(before) or text.endswith("\ufffd"):
            return ""
        self._window = self._window[self._done :]
        self._done = len(self._window)
        return text[len(before) :]

    def finish(self) -> str:
        before, text = self._texts()
        self._done = len(self._window)
        return text[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._decode(self._window[: self._done]), self._decode(self._window)
