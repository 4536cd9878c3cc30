"""`python -m deploy.bench.gpu_worker`: decode steps of a worker's executor alone, without a wire.

Three steps are in flight, as behind a scheduler. For each batch: milliseconds from step to step,
of the host in `launch`, and of the device between the events around forward and sampling; what is
left of a step the device waits. Medians; of a step that repeats its decode, each divided by that.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from worker.__main__ import parse
from worker.executor import Executor, Pending
from worker.start import make_executor
from worker.step import CheckedStep, token_positions

_IN_FLIGHT = 3
_NOTHING = np.zeros(0, np.int32)


class Load:
    """Rows 0, 1, ... of prompts of equal length, with a table each."""

    def __init__(
        self,
        executor: Executor,
        streams: int,
        prompt: int,
        output: int,
        penalty: float = 1.0,
        top_logprobs: int = -1,
    ) -> None:
        self._executor = executor
        self._penalties = np.float32([penalty, 0, 0])
        self._top_logprobs = top_logprobs
        self._geometry = executor.geometry
        self._streams, self._prompt = streams, prompt
        self._blocks = -(-(prompt + output) // self._geometry.block_size)
        if 1 + streams * self._blocks > self._geometry.num_blocks:
            raise ValueError(f"the pool has {self._geometry.num_blocks} blocks: too few")

    def start(self) -> None:
        """Computes the prompts, in steps as large as allowed."""
        count = max(1, self._geometry.max_step_tokens // self._prompt)
        for first in range(0, self._streams, count):
            rows = np.arange(first, min(first + count, self._streams), dtype=np.int32)
            lens = np.full(len(rows), self._prompt, np.int32)
            self._executor.launch(self._step(rows, lens, lens, new=True))[0].wait()

    def decode(self, context: int, repeated: int) -> CheckedStep:
        rows = np.arange(self._streams, dtype=np.int32)
        lens, contexts = np.ones_like(rows), np.full_like(rows, context)
        return self._step(rows, lens, contexts, new=False, repeated=repeated)

    def _step(
        self,
        rows: np.ndarray,
        lens: np.ndarray,
        contexts: np.ndarray,
        *,
        new: bool,
        repeated: int = 1,
    ) -> CheckedStep:
        size = self._geometry.block_size
        positions = token_positions(lens, contexts)
        owners = np.repeat(rows, lens).astype(np.int64)
        written = positions + np.arange(repeated)[:, None]
        slots = (1 + owners * self._blocks + written // size) * size + written % size
        new_rows = rows if new else _NOTHING
        tables = np.repeat(new_rows, self._blocks)
        indices = np.tile(np.arange(self._blocks, dtype=np.int32), len(new_rows))
        return CheckedStep(
            step_id=0,
            decode_steps=repeated,
            new_rows=new_rows,
            new_prompt_lens=lens if new else _NOTHING,
            new_temperatures=np.zeros(len(new_rows), np.float32),
            new_seeds=np.zeros(len(new_rows), np.uint64),
            new_penalties=np.tile(self._penalties, (len(new_rows), 1)),
            new_top_logprobs=np.full(len(new_rows), self._top_logprobs, np.int32),
            token_rows=owners.astype(np.int32) if new else _NOTHING,
            token_positions=positions if new else _NOTHING,
            token_ids=positions * 7 % 1000 + owners.astype(np.int32) if new else _NOTHING,
            block_rows=tables,
            block_indices=indices,
            block_ids=1 + tables * self._blocks + indices,
            rows=rows,
            query_lens=lens,
            context_lens=contexts,
            slots=slots,
            sampling=np.arange(len(rows)),
        )


def measure(
    executor: Executor, load: Load, first: int, count: int, repeated: int
) -> tuple[float, float, float]:
    """(step, host, device) in milliseconds of a decode, of `count` from context `first` on,
    `repeated` of which are one step."""
    in_flight: deque[Sequence[Pending]] = deque()
    ends, host, device = [], [], []
    contexts = range(first, first + count - repeated + 1, repeated)
    for step in [load.decode(context, repeated) for context in contexts]:
        start = time.perf_counter()
        in_flight.append(executor.launch(step))
        host.append(time.perf_counter() - start)
        if len(in_flight) == _IN_FLIGHT:
            device.append(sum(pending.wait().device_ns for pending in in_flight.popleft()))
            ends.append(time.perf_counter())
    steps = np.diff(ends)[len(ends) // 4 :]
    return (
        1e3 * float(np.median(steps)) / repeated,
        1e3 * statistics.median(host) / repeated,
        1e-6 * statistics.median(device) / repeated,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    least = (_IN_FLIGHT + 1) * max(args.decode_steps, 1)
    if args.decode_steps < 1 or args.output < least:
        parser.error(
            f"--decode-steps is {args.decode_steps}, must be at least 1, and --output "
            f"{args.output} at least {least}"
        )
    executor = make_executor(parse(["--model", args.model, *shlex.split(args.worker_args)]))
    start = time.perf_counter()
    executor.warm_up()
    print(f"warm-up {time.perf_counter() - start:.1f} s")
    print("batch   step ms   host ms   device ms   idle")
    for streams in args.streams:
        asked = args.repetition_penalty, args.top_logprobs
        load = Load(executor, streams, args.prompt, args.output, *asked)
        load.start()
        first, count = args.prompt + 1, args.output
        step, host, device = measure(executor, load, first, count, args.decode_steps)
        print(f"{streams:5} {step:9.3f} {host:9.3f} {device:11.3f} {1 - device / step:6.1%}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.bench.gpu_worker",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, help="model folder")
    add("--streams", type=int, nargs="+", default=[1, 32, 256], help="default: 1 32 256")
    add("--prompt", type=int, default=512, help="prompt ids (default: %(default)s)")
    add("--output", type=int, default=200, help="decodes (default: %(default)s)")
    add("--decode-steps", type=int, default=1, help="decodes in one step (default: %(default)s)")
    add("--repetition-penalty", type=float, default=1, help="of all rows (default: %(default)s)")
    add("--top-logprobs", type=int, default=-1, help="of all rows (default: none are asked for)")
    add("--worker-args", default="", metavar="FLAGS", help="more flags of the worker")
    return parser


if __name__ == "__main__":
    sys.exit(main())
