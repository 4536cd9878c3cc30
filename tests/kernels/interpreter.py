"""Triton's interpreter in a third of its time, which goes into what it makes again at each step of
each program: its types, a table of dtypes, checks whose result nobody reads."""

from __future__ import annotations

import dataclasses
from functools import cache
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang
_make_block_type = tl.block_type.__init__
_np_dtype = interpreter._get_np_dtype
_block_types: dict[tuple, dict[str, Any]] = {}  # the attributes of each
_shapes: dict[tuple, tuple] = {(): (tl.core.tuple([]), tl.constexpr(1))}  # and numel, of tensors
_np_dtypes: dict[str, Any] = {}


@cache
def hasten() -> None:
    """For the rest of the process."""
    theirs = vars(tl.tensor(None, tl.block_type(tl.int32, [2]))).keys()
    interpreter._patch_lang = _patch_once
    interpreter._get_np_dtype = _known_np_dtype
    tl.block_type.__init__ = _init_block_type
    tl.tensor.__init__ = _init_tensor
    assert vars(tl.tensor(None, tl.block_type(tl.int32, [2]))).keys() == theirs
    builder = interpreter.interpreter_builder
    # An overflow would be computed at each sum, and reported in debug mode alone.
    assert builder.options.sanitize_overflow
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_once(fn: FunctionType) -> interpreter._LangPatchScope:
    """Looks through all of `triton.language` for what to patch at a kernel's launch, until whose
    end it stays patched, but not at each call of a device function, where nothing is left to."""
    seen = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
    if any(tl.core.is_builtin(language.load) for language in seen):
        return _patch(fn)
    return interpreter._LangPatchScope()


def _known_np_dtype(dtype: tl.dtype) -> Any:
    known = _np_dtypes.get(dtype.name)
    if known is None:
        known = _np_dtypes[dtype.name] = _np_dtype(dtype)
    return known


def _init_block_type(self: tl.block_type, element_ty: tl.dtype, shape: Any) -> None:
    key = (element_ty.name, *(tl.core._unwrap_if_constexpr(size) for size in shape))
    if key not in _block_types:
        _make_block_type(self, element_ty, shape)
        _block_types[key] = vars(self).copy()
    vars(self).update(_block_types[key])


def _init_tensor(self: tl.tensor, handle: Any, type: tl.dtype) -> None:
    sizes = tuple(type.shape) if type.is_block() else ()
    if sizes not in _shapes:
        numel = tl.constexpr(type.numel)
        _shapes[sizes] = tl.core.tuple([tl.constexpr(size) for size in sizes]), numel
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _shapes[sizes]
