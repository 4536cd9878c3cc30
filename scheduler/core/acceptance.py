"""Takes a step's answer: each token goes to the request it was sampled for."""

from __future__ import annotations

import numpy as np

from scheduler.core.finish import finish
from scheduler.core.front_end import Failure, FailureKind, FinishReason
from scheduler.core.ledger import Ledger
from scheduler.core.logprobs import Logprobs
from scheduler.core.outbox import Outbox
from scheduler.core.request import Request, Verdict
from scheduler.core.step_in_flight import StepInFlight
from scheduler.core.worker_link import StepAnswer


def accept(
    ledger: Ledger, step: StepInFlight, answer: StepAnswer, outbox: Outbox, now: float
) -> None:
    """`answer` is to one repetition. Raises ValueError if it does not have one token for each
    sequence that samples."""
    if len(answer.tokens) != len(step.rows):
        raise ValueError(
            f"step {step.step_id} was answered with {len(answer.tokens)} tokens "
            f"where {len(step.rows)} sequences sample"
        )
    rows, tokens = step.rows, answer.tokens
    current = ledger.rows.generation[rows] == step.generations
    _publish(ledger, step, answer.sub_step)
    held = current & ledger.rows.held[rows]
    if answer.non_finite is None and not held.any() and current.all():  # as nearly always
        _accept_running(ledger, rows, tokens, answer.logprobs, outbox, now)
        return
    bad = np.zeros(len(rows), bool) if answer.non_finite is None else answer.non_finite
    if held.any():
        _pass_over(ledger, rows[held], step.rewrites[held])
        bad = bad & ~held
    for i in bad.nonzero()[0]:
        _fail_non_finite(ledger, step.requests[i], outbox, now)
    for i in (~current & ~bad).nonzero()[0]:
        logprobs = answer.logprobs and answer.logprobs.of(np.arange(len(rows)) == i)
        _accept_late(ledger, step.requests[i], int(tokens[i]), logprobs, outbox, now)
    good = current & ~held & ~bad
    logprobs = answer.logprobs and answer.logprobs.of(good)
    _accept_running(ledger, rows[good], tokens[good], logprobs, outbox, now)


def _publish(ledger: Ledger, step: StepInFlight, sub_step: int) -> None:
    """What the repetition wrote is in the pool: of rows that still are whose they were, save those
    that run for nobody. Before any of them ends and gives its blocks back."""
    if not ledger.sharing.enabled:
        return
    rows, at = ledger.rows, step.all_rows
    good = (rows.generation[at] == step.all_generations) & ~rows.held[at]
    ledger.sharing.answered(at[good], step.context_lens[good] + sub_step)


def _pass_over(ledger: Ledger, at: np.ndarray, rewrites: np.ndarray) -> None:
    """Tokens of held rows: only counted, as nobody will ask for them."""
    ledger.rows.accepted[at[~rewrites]] += 1
    ledger.totals.discarded_tokens += len(at)


def _accept_running(
    ledger: Ledger,
    at: np.ndarray,
    tokens: np.ndarray,
    logprobs: Logprobs | None,
    outbox: Outbox,
    now: float,
) -> None:
    """One more token for each of the rows `at`."""
    rows, times = ledger.rows, ledger.statistics.requests
    accepted = rows.accepted[at]
    rows.tokens[at, accepted] = tokens
    rows.accepted[at] = accepted + 1
    outbox.tokens(rows.handle[at], tokens, logprobs)
    ledger.totals.output_tokens += len(at)
    first = accepted == rows.prompt_len[at]
    others = at[~first]
    if len(others):
        times.inter_token.observe_all(now - rows.last_token_at[others])
    if len(others) < len(at):
        for row in at[first]:
            _first_token(ledger, rows.request[row], now)
    rows.last_token_at[at] = now
    stopped = (rows.stop_ids[at] == tokens[:, None]).any(axis=1)
    full = accepted + 1 >= rows.limit[at]
    for i in (stopped | full).nonzero()[0]:
        _finish_at(ledger, rows.request[at[i]], int(tokens[i]), bool(stopped[i]), outbox, now)


def _accept_late(
    ledger: Ledger,
    request: Request,
    token: int,
    logprobs: Logprobs | None,
    outbox: Outbox,
    now: float,
) -> None:
    """A token for a request that no longer has the row: it was put back and waits for
    this answer, or it has ended."""
    if request.ended:
        ledger.totals.discarded_tokens += 1
        return
    request.unanswered -= 1
    request.tokens = np.append(request.tokens, np.int32(token))
    outbox.tokens(np.array([request.handle]), np.array([token], np.int32), logprobs)
    ledger.totals.output_tokens += 1
    if len(request.tokens) == request.prompt_len + 1:
        _first_token(ledger, request, now)
    else:
        ledger.statistics.requests.inter_token.observe(now - request.last_token_at)
    request.last_token_at = now
    stopped = token in request.submission.stop_ids
    if stopped or len(request.tokens) >= request.limit:
        _finish_at(ledger, request, token, stopped, outbox, now)


def _first_token(ledger: Ledger, request: Request, now: float) -> None:
    request.first_token_at = now
    ledger.statistics.requests.first_token.observe(now - request.submission.arrival)


def _finish_at(
    ledger: Ledger, request: Request, token: int, stopped: bool, outbox: Outbox, now: float
) -> None:
    """An end token beats the length at the same token."""
    verdict = Verdict(FinishReason.STOP, token) if stopped else Verdict(FinishReason.LENGTH)
    finish(ledger, request, verdict, outbox, now)


def _fail_non_finite(ledger: Ledger, request: Request, outbox: Outbox, now: float) -> None:
    if request.ended:
        ledger.totals.discarded_tokens += 1
        return
    ledger.sharing.withdraw(request)
    ledger.end(request)
    message = (
        f"request {request.request_id}: the model's logits were not finite after "
        f"{len(request.tokens)} tokens; the weights or their type may not fit this prompt"
    )
    usage = request.usage(now)
    outbox.end(Failure(request.handle, FailureKind.INTERNAL, message, usage=usage))
