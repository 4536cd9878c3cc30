"""From flags to recorders, and from a recording's start back to flags."""

from __future__ import annotations

import argparse
from pathlib import Path

from nanoserve.v1 import worker_pb2
from worker.dump import Dump
from worker.dump_folder import DumpFolder
from worker.record_file import RecordFile
from worker.recorder import Recorder, Recorders

# How the titles of those groups of flags begin.
_OUTCOME = ("model", "limits", "simulated")


def make_recorders(flags: argparse.ArgumentParser, options: argparse.Namespace) -> Recorders:
    """Those that `--record` and `--dump-dir` ask for. Raises ValueError for a place that cannot
    be written, or a flag without the one that it belongs to."""
    if options.dump_prompts and not options.dump_dir:
        raise ValueError("--dump-prompts is of dumps: give --dump-dir DIR too")
    recorders = []
    arguments = as_arguments(flags, options)
    try:
        if options.dump_dir:
            folder = DumpFolder(options.dump_dir)
            recorders.append(Recorder(Dump(folder, arguments, prompts=options.dump_prompts)))
        if options.record:
            recorders.append(Recorder(RecordFile(options.record, arguments)))
    except OSError as error:
        name = "--record" if options.dump_dir is None or recorders else "--dump-dir"
        raise ValueError(f"{name}: {error.strerror or error}: {error.filename}") from error
    return Recorders(*recorders)


def as_arguments(flags: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    """What a command line must say for `options` to hold, wherever they came from; only of what
    a step's outcome depends on."""
    arguments = ["--debug"] if options.debug else []
    for group in flags._action_groups:
        if group.title and group.title.startswith(_OUTCOME):
            arguments += [_argument(action, options) for action in group._group_actions]
    return [argument for argument in arguments if argument]


def _argument(action: argparse.Action, options: argparse.Namespace) -> str:
    """Empty for a default."""
    value = getattr(options, action.dest)
    flag = action.option_strings[-1]
    if value == action.default:
        return ""
    if isinstance(value, frozenset):
        value = ",".join(map(str, sorted(value)))
    elif isinstance(value, Path):
        value = value.absolute()
    return flag if value is True else f"{flag}={value}"


def recorded_options(
    flags: argparse.ArgumentParser, arguments: list[str], start: worker_pb2.RecordingStart
) -> argparse.Namespace:
    """Flags as given, else as the recorded worker had them; what it chose itself it had too."""
    recorded, _ = flags.parse_known_args([*start.arguments, "FILE"])
    worker = start.worker
    recorded.dtype = worker.model.dtype
    recorded.vocab_size = worker.model.vocab_size
    recorded.max_model_len = worker.model.max_model_len
    recorded.num_blocks, recorded.kv_memory = worker.pool.num_blocks, None
    recorded.block_size = worker.pool.block_size
    for field, value in worker.limits.ListFields():
        setattr(recorded, field.name, value)
    options = flags.parse_args(arguments, recorded)
    if options.kv_memory:
        options.num_blocks = None
    return options
