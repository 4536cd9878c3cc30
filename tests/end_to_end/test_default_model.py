"""Text out of the default model, through both processes, as a person would ask for it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from deploy.local.servers import Servers
from deploy.model.fetch import fetch
from nanoserve import AsyncClient, Client, Completion, FinishReason
from tests.end_to_end.servers import running

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = "Once upon a time, in a small village by the sea, there lived"
LETTER = "Dear Sir or Madam, I am writing to you because"
IM_END = 2
# 13 usable blocks of 4: each of the two texts fits alone, and not both.
WORKER = ("--num-blocks", "17", "--block-size", "4", "--dtype", "float32")


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with running(model=fetch(), worker=WORKER) as servers:
        yield servers


@pytest.fixture
def address(servers: Servers) -> str:
    return servers.address


def test_a_question_is_answered_and_ends_at_the_models_end_token(address: str) -> None:
    with Client(address) as client:
        answer = client.generate(messages=QUESTION, temperature=0).collect()
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason is FinishReason.STOP
    assert answer.matched == IM_END
    assert answer.token_ids[-1] == IM_END


@pytest.mark.gpu
def test_the_first_question_to_a_gpu_is_answered_as_the_next_ones_are() -> None:
    """With a pool of the whole card and captured graphs. In fp32: the first token is "The" rather
    than "L" by a tenth in logits, less than bf16 tells apart there."""
    with (
        running(model=fetch(), worker=("--device", "cuda", "--dtype", "float32")) as servers,
        Client(servers.address) as client,
    ):
        streams = [
            client.generate(messages=QUESTION, temperature=0, max_tokens=limit)
            for limit in (None, 20, None, 40)
        ]
        texts = {stream.collect().text for stream in streams}
        texts.add(client.generate(messages=QUESTION, temperature=0).collect().text)
    assert texts == {"The capital of France is Paris."}


def test_raw_text_goes_on_with_its_leading_space(address: str) -> None:
    with Client(address) as client:
        chunks = list(client.generate("The capital of France is", max_tokens=3, temperature=0))
    assert chunks[0].text.startswith(" Paris")
    assert chunks[0].token_ids[0] == 7042


@pytest.mark.parametrize(
    ("penalty", "output"),
    [
        # Of a penalty that leaves the prompt out the output would begin 216 39 198.
        (1.5, [198, 3725, 2]),
        (None, [216, 39, 216, 40, 216, 41, 216, 33]),
    ],
)
def test_a_repetition_penalty_counts_the_prompt(
    address: str, penalty: float | None, output: list[int]
) -> None:
    with Client(address) as client:
        answer = client.generate(
            "1 2 3 4 5 6", max_tokens=8, temperature=0, repetition_penalty=penalty, top_logprobs=1
        ).collect()
    assert list(answer.token_ids) == output
    likely = [one.top[0].token_id for one in answer.logprobs]
    assert (likely == output) is (penalty is None), "they are those before the penalty"
    if penalty is None:
        assert all(one.logprob == one.top[0].logprob for one in answer.logprobs)


async def taken(client: AsyncClient, count: int) -> None:
    """Returns once the server has so many requests."""
    while (status := await client.status()).running_requests + status.waiting_requests < count:
        await asyncio.sleep(0.01)


def test_text_cut_by_a_stop_string_is_the_same_after_a_preemption(servers: Servers) -> None:
    """The detokenizer and a half-matched stop string go on where they were, and so do penalties
    and log-probabilities."""
    how = {"temperature": 0, "repetition_penalty": 1.1, "top_logprobs": 3}

    worker = servers.child("worker").pid

    async def together(stop: str) -> list[Completion]:
        """The letter comes second. The worker stands still until both have come."""
        async with AsyncClient(servers.address) as client:
            os.kill(worker, signal.SIGSTOP)
            try:
                story = client.generate(STORY, max_tokens=40, temperature=0)
                await taken(client, 1)
                letter = client.generate(LETTER, max_tokens=40, stop=[stop], **how)
                await taken(client, 2)
            finally:
                os.kill(worker, signal.SIGCONT)
            return await asyncio.gather(story.collect(), letter.collect())

    with Client(servers.address) as client:
        story = client.generate(STORY, max_tokens=40, temperature=0).collect()
        letter = client.generate(LETTER, max_tokens=40, **how).collect()
    # So long that it is matched after the preemption, also in text that repeats itself.
    stop = letter.text[20:-20]
    story_again, cut = asyncio.run(together(stop))
    assert cut.usage is not None
    assert cut.usage.preemptions > 0
    assert story_again.text == story.text
    assert cut.text == letter.text.split(stop)[0]
    assert (cut.finish_reason, cut.matched) == (FinishReason.STOP, stop)
    made = len(cut.token_ids)
    assert cut.token_ids == letter.token_ids[:made]
    assert cut.logprobs == letter.logprobs[:made]
    assert made == len(cut.logprobs) == cut.usage.output_tokens
