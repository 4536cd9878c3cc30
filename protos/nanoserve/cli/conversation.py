"""What was said so far, and what of it is sent with the next question."""

from __future__ import annotations

from nanoserve.request import Message


class Conversation:
    """An opening (the system message, or nothing) and exchanges of question and answer."""

    def __init__(self, opening: list[Message]) -> None:
        self._opening = opening
        self._exchanges: list[tuple[str, str]] = []

    def __len__(self) -> int:
        """The number of exchanges."""
        return len(self._exchanges)

    def messages(self, question: str, forget: int) -> list[Message]:
        """The opening, all exchanges but the oldest `forget`, and the question."""
        messages = list(self._opening)
        for asked, answered in self._exchanges[forget:]:
            messages.append(Message(role="user", content=asked))
            messages.append(Message(role="assistant", content=answered))
        messages.append(Message(role="user", content=question))
        return messages

    def add(self, question: str, answer: str, forget: int) -> None:
        """Keeps an exchange, and forgets the oldest `forget` ones for good."""
        del self._exchanges[:forget]
        self._exchanges.append((question, answer))

    def reset(self) -> None:
        """Forgets all exchanges; the opening stays."""
        self._exchanges.clear()
