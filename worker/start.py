"""From flags to an executor. torch is imported inside, on the step loop's thread."""

from __future__ import annotations

import argparse
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from worker.executor import Executor
from worker.geometry import Geometry
from worker.model.errors import ModelError
from worker.model.fingerprint import fingerprint
from worker.watchdog import DEFAULT_TIMEOUTS, StepTimeout, Watchdog, WatchedExecutor

if TYPE_CHECKING:
    from worker.kv_pool import KVPool
    from worker.model.llama import Llama

log = logging.getLogger(__name__)

_Number = TypeVar("_Number", int, float)

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_STEP_TOKENS = {"cuda": 8192, "cpu": 2048, "simulated": 2048}
_ROWS = {"cuda": 512, "cpu": 256, "simulated": 256}
_SIMULATED_BLOCKS = 4096


class StartError(Exception):
    """What is wrong with flags, model folder or memory, in words for the person who starts."""


def make_watched_executor(
    flags: argparse.Namespace, on_hang: Callable[[StepTimeout], object]
) -> WatchedExecutor:
    """As make_executor, and its steps are watched: `on_hang` gets a StepTimeout."""
    executor = make_executor(flags)
    timeout = _given(flags.step_timeout, DEFAULT_TIMEOUTS[executor.geometry.device])
    return WatchedExecutor(executor, Watchdog(timeout, on_hang))


def make_executor(flags: argparse.Namespace) -> Executor:
    """The executor that the flags of worker/__main__.py ask for. Raises StartError."""
    try:
        _check_length(flags.max_model_len)
        _check_pool(flags)
        return _simulation(flags) if flags.simulate else _torch_runner(flags)
    except (ModelError, ValueError, OSError) as error:
        log.debug("start failed", exc_info=error)
        raise StartError(str(error)) from error


def _check_length(max_model_len: int | None) -> None:
    if max_model_len is not None and max_model_len < 2:
        raise ValueError(
            f"--max-model-len is {max_model_len}, must be at least 2: a token of the prompt and "
            "one of the output"
        )


def _check_pool(flags: argparse.Namespace) -> None:
    """What is wrong with the pool's size is told before a model is loaded for it."""
    if flags.kv_memory:
        parse_size(flags.kv_memory)
        if flags.num_blocks is not None:
            raise ValueError("give either --num-blocks or --kv-memory, not both")
    if not 0 < flags.gpu_memory_utilization <= 1:
        raise ValueError(
            f"--gpu-memory-utilization is {flags.gpu_memory_utilization}, must be above 0, at "
            "most 1"
        )


def parse_size(text: str) -> int:
    """Bytes of a --kv-memory such as "512MiB", "1.5GiB" or "1000000". Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2] not in _UNITS:
        raise ValueError(
            f"--kv-memory is {text!r}, must be a number, of bytes or with one of "
            f"{', '.join(_UNITS)[2:]}"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _geometry(
    flags: argparse.Namespace, device: str, max_model_len: int, num_blocks: int, **model: Any
) -> Geometry:
    return Geometry(
        device=device,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        block_size=flags.block_size,
        max_rows=_rows(flags, device),
        max_step_tokens=_step_tokens(flags, device),
        max_steps_in_flight=flags.max_steps_in_flight,
        max_decode_steps=flags.max_decode_steps,
        **model,
    )


def _step_tokens(flags: argparse.Namespace, device: str) -> int:
    return _given(flags.max_step_tokens, max(_STEP_TOKENS[device], _rows(flags, device)))


def _rows(flags: argparse.Namespace, device: str) -> int:
    return _given(flags.max_rows, _ROWS[device])


def _given(flag: _Number | None, default: _Number) -> _Number:
    """A flag's value; 0 is one, for the checks to refuse."""
    return default if flag is None else flag


def _simulation(flags: argparse.Namespace) -> Executor:
    from worker.model.config import read_json
    from worker.simulate import SimulatedExecutor, SimulationOptions, read_script

    config: dict[str, Any] = {}
    if flags.model:
        config = read_json(flags.model / "config.json")
    vocab_size = _given(flags.vocab_size, config.get("vocab_size", 32000))
    geometry = _geometry(
        flags,
        "simulated",
        _given(flags.max_model_len, config.get("max_position_embeddings", 2048)),
        _given(flags.num_blocks, _SIMULATED_BLOCKS),
        fingerprint=fingerprint(flags.model) if flags.model else "",
        vocab_size=vocab_size,
        num_layers=config.get("num_hidden_layers", 1),
        num_kv_heads=config.get("num_key_value_heads") or config.get("num_attention_heads", 1),
        head_dim=config.get("head_dim") or 1,
        dtype="float32",
        bytes_per_block=8 * flags.block_size,  # the pool holds one 64-bit hash per token
    )
    _check_ids(flags, vocab_size)
    options = SimulationOptions(
        step_ms=flags.step_ms,
        token_us=flags.token_us,
        avoid_tokens=flags.avoid_tokens or frozenset(),
        script=read_script(flags.script, vocab_size) if flags.script else (),
        non_finite_tokens=flags.non_finite_tokens or frozenset(),
        crash_tokens=flags.crash_tokens or frozenset(),
        hang_tokens=flags.hang_tokens or frozenset(),
    )
    return SimulatedExecutor(geometry, options)


def _check_ids(flags: argparse.Namespace, vocab_size: int) -> None:
    for name in ("avoid_tokens", "non_finite_tokens", "crash_tokens", "hang_tokens"):
        if (ids := getattr(flags, name)) and (most := max(ids)) >= vocab_size:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} has {most}, must be 0 <= id < {vocab_size} (vocab_size)")


def limit_spinning() -> None:
    """Makes torch's CPU threads sleep after some 50 us of waiting for each other, unless the
    environment says otherwise. To be called before torch is imported.

    libgomp lets them spin for tens of milliseconds, in which a thread that all wait for gets no
    core if another process has it. Beside two busy processes on two cores that made a decode
    step of SmolLM2 6 to 15 times as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _torch_runner(flags: argparse.Namespace) -> Executor:
    limit_spinning()
    began = time.monotonic()
    import torch

    from kernels import check_supported, ops
    from worker.huge_pages import use_huge_pages
    from worker.kv_pool import bytes_per_block
    from worker.model.config import ModelConfig
    from worker.model.dtype import resolve_dtype
    from worker.model.invariance import check_invariance
    from worker.model.llama import Llama
    from worker.model.loader import load_weights
    from worker.runner import TorchRunner

    log.info("torch loaded in %.1f s", time.monotonic() - began)
    if flags.threads is not None:
        if flags.threads < 1:
            raise ValueError(f"threads is {flags.threads}, must be at least 1")
        torch.set_num_threads(flags.threads)
    config = ModelConfig.from_folder(flags.model, flags.max_model_len)
    device = _device(flags.device)
    dtype = resolve_dtype(flags.dtype, config, device)
    began = time.monotonic()
    table = ops(device, batch_invariant=flags.batch_invariant)
    log.info("the kernels' %s face loaded in %.1f s", table.face, time.monotonic() - began)
    check_supported(config.head_dim, flags.block_size, table.face)
    weights = load_weights(flags.model, config, dtype, device, table)
    model = Llama(config, weights, table, device)
    geometry = _geometry(
        flags,
        device,
        config.max_model_len,
        2,  # the least there can be, until the pool is planned
        fingerprint=fingerprint(flags.model),
        vocab_size=config.vocab_size,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=str(dtype).removeprefix("torch."),
        bytes_per_block=bytes_per_block(config, flags.block_size, dtype),
    )
    cuda_graphs = device == "cuda" and not flags.no_cuda_graphs
    if table.face == "triton":
        from worker.kernels_ahead import compile_kernels

        compile_kernels(model, geometry, cuda_graphs)
        if flags.batch_invariant:
            check_invariance(model, flags.block_size)
    pool = _pool(flags, model, geometry, cuda_graphs)
    geometry = replace(geometry, num_blocks=pool.num_blocks)
    if device == "cpu":
        use_huge_pages()
    log.info("%s on %s, %s, %d threads", flags.model, device, dtype, torch.get_num_threads())
    return TorchRunner(model, pool, geometry, cuda_graphs)


def _device(name: str) -> str:
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no CUDA device: use --device cpu")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def _pool(flags: argparse.Namespace, model: Llama, geometry: Geometry, cuda_graphs: bool) -> KVPool:
    """The pool of a worker whose other limits are `geometry`; the plan goes to the log."""
    from worker.graphs import graph_bytes
    from worker.kv_pool import allocate_pool, plan_pool
    from worker.model.memory_profile import pool_bytes

    kv_memory = parse_size(flags.kv_memory) if flags.kv_memory else None
    available = None
    if flags.num_blocks is None and kv_memory is None:
        available = pool_bytes(
            model,
            max_rows=geometry.max_rows,
            max_step_tokens=geometry.max_step_tokens,
            block_size=geometry.block_size,
            utilization=flags.gpu_memory_utilization,
        )
        if cuda_graphs:
            available -= graph_bytes(model, geometry)
    plan = plan_pool(
        model.config,
        model.dtype,
        flags.block_size,
        max_rows=geometry.max_rows,
        num_blocks=flags.num_blocks,
        kv_memory=kv_memory,
        available=available,
    )
    for line in plan.describe():
        log.info("%s", line)
    return allocate_pool(plan, model.config, model.dtype, model.device)
