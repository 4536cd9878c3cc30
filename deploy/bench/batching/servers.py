"""One worker, and schedulers that take turns on it and record their steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from deploy.bench.batching.recording import Recording
from deploy.bench.worker_process import WorkerProcess

# Loads come more than once, and every prompt is to be computed each time.
SCHEDULER = ("--no-tokenizer", "--no-prefix-cache")


class RecordedWorker(WorkerProcess):
    """A worker whose schedulers record."""

    @contextmanager
    def recorded_scheduler(
        self, flags: Sequence[str], recordings: list[Recording]
    ) -> Iterator[str]:
        """The address of a scheduler, ready; its recording is appended when it has ended.
        Raises RuntimeError as `scheduler` does."""
        path = self.folder / "recording.json.gz"
        module = ("deploy.bench.batching.recorded_scheduler", str(path))
        with self.scheduler(flags, module) as address:
            yield address
        recordings.append(Recording.load(path))
