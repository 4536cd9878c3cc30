"""The rows that become live with a step. Rare, so a Python loop over them is fine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from nanoserve.v1 import worker_pb2
from worker.geometry import Geometry
from worker.refusal import StepRefused
from worker.step import read_column

# Of a temperature other than 0, and of a repetition penalty. Rounded to float32, as a limit that
# was sent over the wire is.
LEAST, MOST = float(np.float32(0.01)), 100.0
MAX_LOWERING = 2  # by a frequency or presence penalty, or raising
MAX_TOP_LOGPROBS = 20

Refuse = Callable[[str], NoReturn]

_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class NewRow:
    """A checked NewRow of worker.proto."""

    row: int
    request_id: str
    token_ids: np.ndarray  # int32 [n]
    prompt_len: int
    tokens_in_pool: int
    block_ids: np.ndarray  # int32 [b]
    temperature: float
    seed: int
    penalties: tuple[float, float, float]  # repetition, frequency, presence
    top_logprobs: int  # -1: no log-probabilities


@dataclass(slots=True)
class NewRows:
    """The new rows of a step as columns."""

    rows: list[int] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    prompt_lens: list[int] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    penalties: list[tuple[float, float, float]] = field(default_factory=list)
    top_logprobs: list[int] = field(default_factory=list)
    token_ids: list[np.ndarray] = field(default_factory=list)
    block_ids: list[np.ndarray] = field(default_factory=list)

    def add(self, row: NewRow) -> None:
        self.rows.append(row.row)
        self.request_ids.append(row.request_id)
        self.prompt_lens.append(row.prompt_len)
        self.temperatures.append(row.temperature)
        self.seeds.append(row.seed)
        self.penalties.append(row.penalties)
        self.top_logprobs.append(row.top_logprobs)
        self.token_ids.append(row.token_ids)
        self.block_ids.append(row.block_ids)

    def columns(self) -> Mapping[str, np.ndarray]:
        """What CheckedStep has of them, besides blocks, by the names of its fields."""
        if not self.rows:
            return _NO_NEW_ROWS
        return {
            "new_rows": np.array(self.rows, np.int32),
            "new_prompt_lens": np.array(self.prompt_lens, np.int32),
            "new_temperatures": np.array(self.temperatures, np.float32),
            "new_seeds": np.array(self.seeds, np.uint64),
            "new_penalties": np.array(self.penalties, np.float32),
            "new_top_logprobs": np.array(self.top_logprobs, np.int32),
            "token_rows": self.flat_rows(self.token_ids),
            "token_positions": self.flat_indices(self.token_ids),
            "token_ids": self.flat(self.token_ids),
        }

    def flat(self, columns: list[np.ndarray]) -> np.ndarray:
        if len(columns) == 1:
            return columns[0]
        return np.concatenate(columns) if columns else _NONE

    def flat_rows(self, columns: list[np.ndarray]) -> np.ndarray:
        """int32: the row of each value of flat(columns)."""
        if not columns:
            return _NONE
        return np.repeat(np.array(self.rows, np.int32), [len(column) for column in columns])

    def flat_indices(self, columns: list[np.ndarray]) -> np.ndarray:
        """int32: the index of each value of flat(columns) in its own column."""
        return self.flat([np.arange(len(column), dtype=np.int32) for column in columns])


_NO_NEW_ROWS: Mapping[str, np.ndarray] = {
    "new_rows": _NONE,
    "new_prompt_lens": _NONE,
    "new_temperatures": np.zeros(0, np.float32),
    "new_seeds": np.zeros(0, np.uint64),
    "new_penalties": np.zeros((0, 3), np.float32),
    "new_top_logprobs": _NONE,
    "token_rows": _NONE,
    "token_positions": _NONE,
    "token_ids": _NONE,
}


def check_new_row(message: worker_pb2.NewRow, geometry: Geometry) -> NewRow:
    """Checks what does not depend on the rows' states. Raises StepRefused."""

    def refuse(text: str) -> NoReturn:
        raise StepRefused(f"new_rows: {text}", row=message.row, request_id=message.request_id)

    if not 0 <= message.row < geometry.max_rows:
        refuse(f"row is {message.row}, must be 0 <= row < {geometry.max_rows}")
    tokens = read_column("new_rows.token_ids", message.token_ids)
    blocks = read_column("new_rows.block_ids", message.block_ids)
    count = len(tokens)
    if not 1 <= count <= geometry.max_model_len:
        refuse(
            f"token_ids has {count} values, must have 1 to max_model_len {geometry.max_model_len}"
        )
    unsigned = tokens.view(np.uint32)  # a negative id is a large one without its sign
    if int(unsigned.max()) >= geometry.vocab_size:
        i = int((unsigned >= geometry.vocab_size).argmax())
        refuse(f"token_ids[{i}] is {tokens[i]}, must be 0 <= id < {geometry.vocab_size}")
    if not 1 <= message.prompt_len <= count:
        refuse(f"prompt_len is {message.prompt_len}, must be 1 <= prompt_len <= {count}")
    if not 0 <= message.tokens_in_pool < count:
        refuse(f"tokens_in_pool is {message.tokens_in_pool}, must be 0 <= tokens_in_pool < {count}")
    _check_blocks(message, blocks, geometry, refuse)
    sampling = message.sampling
    penalties = _penalties(sampling)
    _check_sampling(sampling.temperature, penalties, refuse)
    return NewRow(
        row=message.row,
        request_id=message.request_id,
        token_ids=tokens,
        prompt_len=message.prompt_len,
        tokens_in_pool=message.tokens_in_pool,
        block_ids=blocks,
        temperature=sampling.temperature,
        seed=sampling.seed,
        penalties=penalties,
        top_logprobs=_top_logprobs(message, geometry, refuse),
    )


def _penalties(sampling: worker_pb2.SamplingParams) -> tuple[float, float, float]:
    repetition = sampling.repetition_penalty if sampling.HasField("repetition_penalty") else 1.0
    return repetition, sampling.frequency_penalty, sampling.presence_penalty


def _check_sampling(
    temperature: float, penalties: tuple[float, float, float], refuse: Refuse
) -> None:
    """Written so that a NaN fails each."""
    if not (temperature == 0 or LEAST <= temperature <= MOST):
        refuse(f"temperature is {np.float32(temperature)}, must be 0 or 0.01 <= temperature <= 100")
    repetition, *others = penalties
    if not LEAST <= repetition <= MOST:
        told = np.float32(repetition)
        refuse(f"repetition_penalty is {told}, must be 0.01 <= repetition_penalty <= 100")
    for name, value in zip(("frequency_penalty", "presence_penalty"), others, strict=True):
        if not -MAX_LOWERING <= value <= MAX_LOWERING:
            refuse(f"{name} is {np.float32(value)}, must be -2 <= {name} <= 2")


def _top_logprobs(message: worker_pb2.NewRow, geometry: Geometry, refuse: Refuse) -> int:
    if not message.HasField("top_logprobs"):
        return -1
    most = min(MAX_TOP_LOGPROBS, geometry.vocab_size)
    if not 0 <= message.top_logprobs <= most:
        refuse(
            f"top_logprobs is {message.top_logprobs}, must be 0 <= top_logprobs <= {most} (at most "
            f"{MAX_TOP_LOGPROBS}, vocab_size {geometry.vocab_size})"
        )
    return message.top_logprobs


def _check_blocks(
    message: worker_pb2.NewRow, blocks: np.ndarray, geometry: Geometry, refuse: Refuse
) -> None:
    if not len(blocks) and not message.tokens_in_pool:  # nothing is shared, which is usual
        return
    most = geometry.max_blocks_per_row
    if len(blocks) > most:
        refuse(f"block_ids has {len(blocks)} values, must have at most {most}")
    if (bad := (blocks < 1) | (blocks >= geometry.num_blocks)).any():
        i = int(bad.argmax())
        refuse(f"block_ids[{i}] is {blocks[i]}, must be 1 <= block < {geometry.num_blocks}")
    if len(np.unique(blocks)) != len(blocks):
        refuse("block_ids names a block twice")
    room = len(blocks) * geometry.block_size
    if message.tokens_in_pool > room:
        refuse(
            f"tokens_in_pool is {message.tokens_in_pool}, but {len(blocks)} blocks hold only {room}"
        )
