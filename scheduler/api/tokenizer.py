"""Text to token ids and back, for one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from tokenizers import Tokenizer as HuggingFaceTokenizer

from scheduler.api.chat_template import ChatTemplate, ChatTemplateError
from scheduler.api.detokenizer import Detokenizer
from scheduler.api.model_folder import ModelFolder, ModelFolderError
from scheduler.api.pieces import detokenizer_maker
from scheduler.api.special_text import SpecialText
from scheduler.api.special_tokens import register_special_tokens, special_token_names


class Tokenizer:
    """A model's tokenizer with its chat template.

    The encoding methods may take seconds for megabytes; call them on a thread. They
    let other threads run meanwhile.
    """

    def __init__(self, folder: ModelFolder) -> None:
        path = folder.path / "tokenizer.json"
        if not path.is_file():
            raise ModelFolderError(
                f"{path}: missing; use another folder, or --no-tokenizer to serve token ids only"
            )
        try:
            self._tokenizer = HuggingFaceTokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exceptions
            raise ModelFolderError(f"{path}: cannot be read: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.special_ids = register_special_tokens(self._tokenizer, folder)
        texts = {token_id: self._tokenizer.id_to_token(token_id) for token_id in self.special_ids}
        self._special_text = SpecialText(text for text in texts.values() if text)
        self._special_lengths = {
            token_id: len(self._tokenizer.decode([token_id], skip_special_tokens=False))
            for token_id in self.special_ids
        }
        self.chat_template = self._chat_template(folder)
        self._make_shown = detokenizer_maker(self._tokenizer, frozenset())
        self._make_hidden = detokenizer_maker(self._tokenizer, self.special_ids)

    def encode_text(self, text: str) -> list[int]:
        """With the begin token, if the tokenizer adds one. Text that looks like a special
        token is that token."""
        return _encode(self._tokenizer, text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Through the chat template, which writes all special tokens itself; text in
        messages that looks like one is ordinary text. Raises ChatTemplateError."""
        if self.chat_template is None:
            raise ChatTemplateError("the model has no chat template: send text or token_ids")
        guarded = [
            {
                # Templates compare roles, and may put special tokens together from them.
                key: text
                if key == "role" and text.isidentifier()
                else self._special_text.guard(text)
                for key, text in message.items()
            }
            for message in messages
        ]
        rendered = self.chat_template.render(guarded)
        if guarded == list(messages):
            return _encode(self._tokenizer, rendered, add_special_tokens=False)
        revealed = self._special_text.reveal(rendered)
        return _encode(self._private_tokenizer, revealed, add_special_tokens=False)

    def detokenizer(self, prompt_ids: Iterable[int], include_special: bool) -> Detokenizer:
        """For one output that follows a prompt."""
        return (self._make_shown if include_special else self._make_hidden)(prompt_ids)

    def special_length(self, token_id: int) -> int:
        """Characters of a special token's text; 0 for any other token."""
        return self._special_lengths.get(token_id, 0)

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token's spelling: n tokens stand for at most n times that."""
        return max(len(token.encode()) for token in self._tokenizer.get_vocab())

    @cached_property
    def _private_tokenizer(self) -> HuggingFaceTokenizer:
        return self._special_text.renamed(self._tokenizer)

    def _chat_template(self, folder: ModelFolder) -> ChatTemplate | None:
        if folder.chat_template is None:
            return None
        try:
            return ChatTemplate(folder.chat_template, special_token_names(folder))
        except ChatTemplateError as error:
            raise ModelFolderError(f"{folder.path}: {error}") from error


def _encode(tokenizer: HuggingFaceTokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Only the batch method lets other threads run meanwhile."""
    encodings = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encodings[0].ids
    return ids
