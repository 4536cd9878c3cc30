"""The simulated worker: no model and no torch, but a pool, tables and rows like the real ones.

A slot of the pool holds the prefix hash (worker/simulated_tokens.py) of its token. A step
reads the hash before its first token through the row's block table, adds its own tokens and
writes through the slot mapping; a sampled token is a function of the hash read back. So a
wrong slot, a wrong table or a block that two rows write changes the output. Of older blocks
the first slot of each is compared with what the row's tokens make it: whoever takes a block
writes that slot first.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from worker.executor import Logprobs, StepOutput
from worker.geometry import Geometry
from worker.simulated_logprobs import simulated_logprobs
from worker.simulated_tokens import Choices, draw_salts, mix, next_tokens, token_values
from worker.step import NO_PENALTIES, CheckedStep, exclusive_sum, token_positions


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How a simulated worker behaves. Times make the cost model of its device."""

    step_ms: float = 0.0  # device time of a step
    token_us: float = 0.0  # device time added per query token
    avoid_tokens: frozenset[int] = frozenset()  # ids never drawn, such as end tokens
    script: tuple[int, ...] = ()  # output ids by output position; the last one repeats
    non_finite_tokens: frozenset[int] = frozenset()  # a row that ends on one is not finite
    crash_tokens: frozenset[int] = frozenset()  # a step that computes one is fatal
    # A step that computes one never ends, and holds the interpreter's lock for ever.
    hang_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name in ("step_ms", "token_us"):
            if not 0 <= getattr(self, name) < 1e6:
                raise ValueError(f"{name} is {getattr(self, name)}, must be 0 <= {name} < 1e6")


def read_script(path: Path, vocab_size: int) -> tuple[int, ...]:
    """A JSON list of token ids; raises ValueError for anything else, or for no file."""
    try:
        script = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"script {path}: cannot be read: {error}") from error
    if not isinstance(script, list) or not script:
        raise ValueError(f"script {path}: must be a JSON list of at least one token id")
    for i, token in enumerate(script):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ValueError(f"script {path}: [{i}] is {token!r}, must be 0 <= id < {vocab_size}")
    return tuple(script)


@dataclass(frozen=True, slots=True)
class SimulatedPending:
    """A step whose output is known and whose device time ends at `ends_ns` (monotonic)."""

    tokens: np.ndarray
    non_finite: np.ndarray | None
    device_ns: int
    ends_ns: int
    idle_ns: int | None
    logprobs: Logprobs | None = None
    inline_ns: int = 0

    def wait(self) -> StepOutput:
        if (left := self.ends_ns - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)
        times = (self.device_ns, 0, self.idle_ns)
        return StepOutput(self.tokens, self.non_finite, *times, self.logprobs)


class SimulatedExecutor:
    """An Executor (worker/executor.py) in numpy."""

    def __init__(self, geometry: Geometry, options: SimulationOptions | None = None) -> None:
        self.geometry = geometry
        self._options = options = options or SimulationOptions()
        self._choices = Choices(geometry.vocab_size, options.avoid_tokens)
        self._script = np.array(options.script, np.int32)
        rows, width = geometry.max_rows, geometry.max_model_len + 1
        self._pool = np.zeros(geometry.num_slots, np.uint64)
        self._tables = np.zeros((rows, geometry.max_blocks_per_row), np.int32)
        self._tokens = np.zeros((rows, width), np.int32)
        self._prefixes = np.zeros((rows, width), np.uint64)
        self._prompt_lens = np.zeros(rows, np.int32)
        self._temperatures = np.zeros(rows, np.float32)
        self._seeds = np.zeros(rows, np.uint64)
        self._penalties = np.tile(NO_PENALTIES, (rows, 1))
        self._top_logprobs = np.full(rows, -1, np.int32)
        self._device_free_ns: int | None = None  # monotonic; None before the first step

    def warm_up(self) -> None:
        """A simulation has nothing that could fail later."""

    def launch(self, step: CheckedStep) -> Sequence[SimulatedPending]:
        self._update_rows(step)
        return [self._repetition(step, k) for k in range(step.decode_steps)]

    def _update_rows(self, step: CheckedStep) -> None:
        self._prompt_lens[step.new_rows] = step.new_prompt_lens
        self._temperatures[step.new_rows] = step.new_temperatures
        self._seeds[step.new_rows] = step.new_seeds
        self._penalties[step.new_rows] = step.new_penalties
        self._top_logprobs[step.new_rows] = step.new_top_logprobs
        self._tables[step.block_rows, step.block_indices] = step.block_ids
        self._tokens[step.token_rows, step.token_positions] = step.token_ids
        if len(step.new_rows):
            values = token_values(step.token_ids, step.token_positions)
            starts = np.flatnonzero(step.token_positions == 0)
            lens = np.diff(np.append(starts, len(values)))
            self._prefixes[step.token_rows, step.token_positions] = _running_sums(values, lens)

    def _repetition(self, step: CheckedStep, k: int) -> SimulatedPending:
        context_lens = step.context_lens + np.int32(k)
        positions = token_positions(step.query_lens, context_lens)
        token_rows = np.repeat(step.rows, step.query_lens)
        tokens = self._tokens[token_rows, positions]
        if _any_of(tokens, self._options.crash_tokens):
            raise RuntimeError("a crash token was computed")
        if _any_of(tokens, self._options.hang_tokens):
            ctypes.PyDLL(None).pause()  # PyDLL keeps the lock
        before = context_lens - step.query_lens - 1
        history = np.where(before >= 0, self._read(step.rows, before), np.uint64(0))
        sums = _running_sums(token_values(tokens, positions), step.query_lens)
        self._pool[step.slots[k]] = sums + np.repeat(history, step.query_lens)

        rows, lens = step.rows[step.sampling], context_lens[step.sampling]
        hashes = self._read(rows, lens - 1) + self._damage(rows, lens)
        sampled = self._sample(rows, lens, hashes)
        ends = np.cumsum(step.query_lens)[step.sampling] - 1
        non_finite = np.isin(tokens[ends], list(self._options.non_finite_tokens))
        sampled[non_finite] = 0
        logprobs = self._logprobs(rows, sampled, hashes, ~non_finite)
        self._tokens[rows, lens] = sampled
        self._prefixes[rows, lens] = self._prefixes[rows, lens - 1] + token_values(sampled, lens)

        options = self._options
        device_ns = round(options.step_ms * 1e6 + options.token_us * 1e3 * len(tokens))
        free_ns, now_ns = self._device_free_ns, time.monotonic_ns()
        starts_ns = now_ns if free_ns is None else max(now_ns, free_ns)
        self._device_free_ns = starts_ns + device_ns
        return SimulatedPending(
            sampled,
            non_finite if non_finite.any() else None,
            device_ns,
            self._device_free_ns,
            None if free_ns is None else starts_ns - free_ns,
            logprobs,
        )

    def _sample(self, rows: np.ndarray, context_lens: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """int32 [m]"""
        if len(self._script):
            outputs = context_lens - self._prompt_lens[rows]
            return self._script[np.minimum(outputs, len(self._script) - 1)]
        salts = draw_salts(
            self._temperatures[rows],
            self._seeds[rows],
            self._penalties[rows],
            self._prompt_lens[rows],
        )
        return self._choices.ids(next_tokens(hashes, len(self._choices), salts))

    def _logprobs(
        self, rows: np.ndarray, sampled: np.ndarray, hashes: np.ndarray, finite: np.ndarray
    ) -> Logprobs | None:
        counts = self._top_logprobs[rows] + 1
        samples = np.flatnonzero(finite & (counts > 0)).astype(np.int32)
        if not len(samples):
            return None
        return simulated_logprobs(
            hashes[samples],
            sampled[samples],
            samples,
            counts[samples],
            self._choices,
            self.geometry.vocab_size,
        )

    def _read(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """uint64 [n]: the pool at each row's position, through its block table."""
        size = self.geometry.block_size
        blocks = self._tables[rows, positions // size].astype(np.int64)
        return self._pool[blocks * size + positions % size]

    def _damage(self, rows: np.ndarray, context_lens: np.ndarray) -> np.ndarray:
        """uint64 [m]: 0 where the first slot of every block of the context holds what the
        row's tokens make it."""
        if not len(rows):
            return np.zeros(0, np.uint64)
        size = self.geometry.block_size
        blocks = -(-int(context_lens.max()) // size)
        positions = np.arange(blocks) * size
        slots = self._tables[rows, :blocks].astype(np.int64) * size
        wrong = self._pool[slots] - self._prefixes[rows[:, None], positions]
        wrong[positions >= context_lens[:, None]] = 0
        return mix((wrong * mix(positions.astype(np.uint64) + np.uint64(1))).sum(axis=1))


def _any_of(tokens: np.ndarray, ids: frozenset[int]) -> bool:
    return bool(ids) and bool(np.isin(tokens, list(ids)).any())


def _running_sums(values: np.ndarray, lens: np.ndarray) -> np.ndarray:
    """uint64 [n]: running sums, modulo 2^64, that start again with each segment of `lens`,
    none of which is empty."""
    sums = np.cumsum(values, dtype=np.uint64)
    starts = exclusive_sum(lens)[:-1]
    return sums - np.repeat(sums[starts] - values[starts], lens)
