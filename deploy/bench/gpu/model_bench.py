"""All rows of one model: its worker, and the schedulers that take turns on it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.bench.floor import ModelSize, Rates
from deploy.bench.gpu.measure import ModelRows, Sizes
from deploy.bench.gpu.rows import Row
from deploy.bench.gpu.start import Start
from deploy.bench.ready import free_address
from deploy.bench.worker_process import WorkerProcess

# What --only names besides models, in the order of the table.
KINDS = ("attention", "start", "decode", "mixed512", "prefill", "first-token", "text")
_SERVED = frozenset(KINDS) - {"attention", "start"}
_KERNEL_CACHE = "TRITON_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class Options:
    device: str
    kinds: frozenset[str]
    frontends: int
    decode_steps: int
    worker_args: tuple[str, ...]
    scheduler_args: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.frontends <= 64:
            raise ValueError(f"--frontends is {self.frontends}, must be 0 to 64")
        if self.decode_steps < 1:
            raise ValueError(f"--decode-steps is {self.decode_steps}, must be at least 1")

    @property
    def needs_models(self) -> bool:
        return self.kinds != {"attention"}


class ModelBench:
    """`run` yields rows as they are measured; `starts` has the worker's by then."""

    def __init__(
        self,
        shape: str,
        folder: Path,
        rates: Rates,
        sizes: Sizes,
        options: Options,
        show: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._options = options
        self._show = show
        config = json.loads((folder / "config.json").read_text())
        self._rows = ModelRows(
            shape, ModelSize.of(folder), config["vocab_size"], rates, sizes, show
        )
        self.starts: dict[str, Start] = {}

    def run(self) -> Iterator[Row]:
        wanted = self._options.kinds
        with ExitStack() as stack:
            if "start" in wanted:
                stack.enter_context(_empty_kernel_cache())
                with self._worker() as worker:
                    yield self._start("cold", worker)
            worker = stack.enter_context(self._worker())
            if "start" in wanted:
                yield self._start("warm", worker)
            if wanted & _SERVED:
                yield from self._serve(worker)

    def _start(self, cache: str, worker: WorkerProcess) -> Row:
        shape = self._rows.shape
        self._show(f"{shape}: start, {cache} kernel cache")
        start = self.starts[f"{shape} {cache}"] = Start.of(worker)
        title = f"{shape.upper()} worker start, {cache} kernel cache"
        return Row(f"{shape} start {cache}", title, "s", (start.seconds,))

    def _serve(self, worker: WorkerProcess) -> Iterator[Row]:
        wanted, rows, steps = self._options.kinds, self._rows, self._options.decode_steps
        streams = rows.sizes.streams
        with_text: Sequence[float] = ()
        with self._scheduler(worker) as address:
            if "decode" in wanted:
                for row in rows.decode(address, streams):
                    yield row
                    if row.key == rows.decode_key(max(streams)):
                        with_text = [ms / 1e3 for ms in row.values]
            if "mixed512" in wanted:
                yield rows.mixed(address)
            if "prefill" in wanted:
                yield rows.prefill(address)
            if "first-token" in wanted and self._options.frontends:
                yield rows.first_token(address, self._options.frontends)
            if "text" in wanted and not with_text:
                with_text, _ = rows.steps(address, max(streams))
        if "first-token" in wanted:
            # One user needs no front ends, and by default there are none.
            with self._scheduler(worker, "--frontends", "0") as address:
                yield rows.first_token(address)
        if "text" in wanted:
            with self._scheduler(worker, "--no-tokenizer") as address:
                ids, _ = rows.steps(address, max(streams))
            yield rows.text(with_text, ids, max(streams))
        if "decode" in wanted and steps > 1:
            with self._scheduler(worker, "--decode-steps", str(steps)) as address:
                yield from rows.decode(address, streams, steps)

    def _worker(self) -> WorkerProcess:
        options = self._options
        simulated = "--simulate" in options.worker_args  # to try this out: it has no device
        device = () if simulated else ("--device", options.device)
        flags = ("--model", str(self._folder), *device)
        repeated = ("--max-decode-steps", str(options.decode_steps))
        return WorkerProcess((*flags, *repeated, *options.worker_args))

    def _scheduler(self, worker: WorkerProcess, *flags: str) -> AbstractContextManager[str]:
        options = self._options
        return worker.scheduler(
            (
                *("--model", str(self._folder), "--log-level", "warning"),
                *("--frontends", str(options.frontends), "--no-prefix-cache", *flags),
                *options.scheduler_args,
            ),
            listen=free_address(),
        )


@contextmanager
def _empty_kernel_cache() -> Iterator[None]:
    """For the processes started meanwhile."""
    before = os.environ.get(_KERNEL_CACHE)
    with tempfile.TemporaryDirectory(prefix="nanoserve-") as folder:
        os.environ[_KERNEL_CACHE] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ[_KERNEL_CACHE]
            else:
                os.environ[_KERNEL_CACHE] = before
