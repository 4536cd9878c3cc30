"""The kernels of a worker, compiled before its first step."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from kernels.compile_ahead import compile_ahead
from worker.geometry import Geometry
from worker.graphs import launch_once
from worker.model.llama import Llama
from worker.model.memory_profile import run_largest_steps

log = logging.getLogger(__name__)

_CHANGES = (torch.int32, torch.int64)  # words, and the places that they go to


def compile_kernels(model: Llama, geometry: Geometry, cuda_graphs: bool) -> None:
    """Those that the profile of memory, the warm-up and the captures will launch, but for a few.
    What is missing, all of them after a failure here, is compiled at its first launch."""
    thin = two_layers(model)
    limits = geometry.max_rows, geometry.max_step_tokens, geometry.block_size
    try:
        with compile_ahead() as done:
            run_largest_steps(thin, *limits)
            _change_a_row(thin)
            if cuda_graphs:
                launch_once(thin, geometry)
    except Exception as error:
        log.warning("kernels were not compiled ahead: %s", error, exc_info=error)
        return
    log.info(
        "%d kernels in %.1f s, of which %d were compiled (%.1f s of one thread)",
        done.kernels, done.seconds, done.compiled, done.compiler_seconds,
    )  # fmt: skip


def _change_a_row(model: Llama) -> None:
    """What Rows.apply launches."""
    words, places = (torch.zeros(1, dtype=kind, device=model.device) for kind in _CHANGES)
    model.ops.scatter(words, places, words.clone())


def two_layers(model: Llama) -> Llama:
    """The first and the last, which launch all the kernels that any layer does."""
    weights, config = model.weights, replace(model.config, num_layers=2)
    layers = weights.layers[0], weights.layers[-1]
    return Llama(config, replace(weights, layers=layers), model.ops, model.device)
