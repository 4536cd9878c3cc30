"""What a worker is: its model, its pool and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from nanoserve.v1 import worker_pb2

PROTOCOL_VERSION = 1
_INT32_END = 2**31


@dataclass(frozen=True, slots=True)
class Geometry:
    """Everything that Connect tells. Units are those of worker.proto.

    Raises ValueError, naming field, value and limit, for a geometry that cannot serve.
    """

    device: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    num_blocks: int
    block_size: int
    bytes_per_block: int
    max_rows: int
    max_step_tokens: int
    max_steps_in_flight: int
    max_decode_steps: int

    def __post_init__(self) -> None:
        # The scratch block and one to serve from; a token of the prompt and one of the output.
        least = {"num_blocks": 2, "max_model_len": 2}
        for name in (
            "vocab_size",
            "max_model_len",
            "num_blocks",
            "block_size",
            "max_rows",
            "max_step_tokens",
            "max_steps_in_flight",
            "max_decode_steps",
        ):
            value, low = getattr(self, name), least.get(name, 1)
            if not low <= value < _INT32_END:
                raise ValueError(f"{name} is {value}, must be {low} <= {name} < 2^31")
        if self.max_step_tokens < self.max_rows:
            raise ValueError(
                f"max_step_tokens is {self.max_step_tokens}, must be at least max_rows "
                f"({self.max_rows}), so that every row can decode in one step"
            )

    @property
    def max_blocks_per_row(self) -> int:
        return -(-self.max_model_len // self.block_size)

    @property
    def num_slots(self) -> int:
        """Slots of the pool, the scratch block's included."""
        return self.num_blocks * self.block_size

    def description(self) -> worker_pb2.ConnectResponse:
        """What Connect tells of the worker, without incarnation and steps."""
        return worker_pb2.ConnectResponse(
            protocol_version=PROTOCOL_VERSION,
            model=self.model_message(),
            pool=self.pool_message(),
            limits=self.limits_message(),
            device=self.device,
        )

    def model_message(self) -> worker_pb2.ModelGeometry:
        return worker_pb2.ModelGeometry(
            fingerprint=self.fingerprint,
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=self.dtype,
        )

    def pool_message(self) -> worker_pb2.PoolGeometry:
        return worker_pb2.PoolGeometry(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            bytes_per_block=self.bytes_per_block,
        )

    def limits_message(self) -> worker_pb2.WorkerLimits:
        return worker_pb2.WorkerLimits(
            max_rows=self.max_rows,
            max_step_tokens=self.max_step_tokens,
            max_steps_in_flight=self.max_steps_in_flight,
            max_decode_steps=self.max_decode_steps,
        )
