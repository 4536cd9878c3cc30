"""Statuses of a server at work, for tests of what is shown of them."""

from __future__ import annotations

from nanoserve.status import ServerStatus, status_from
from nanoserve.v1 import inference_pb2 as pb

OWNERS = [-2, *[0] * 10, *[3] * 5, -3, -3, *[-1] * 14]


def response(second: float = 0.0, **changed: object) -> pb.GetStatusResponse:
    """At `second` of a life in which a second brings 100 output tokens, 1,000 prompt tokens
    and 50 steps, one first token after 0.1 s and 99 further tokens at 20 ms."""
    done = int(second)
    status = pb.GetStatusResponse(
        ready=True,
        model="tiny",
        max_model_len=64,
        vocab_size=256,
        max_rows=4,
        block_size=16,
        usable_blocks=31,
        free_blocks=16,
        running_requests=2,
        waiting_requests=7,
        steps=50 * done,
        prompt_tokens=1000 * done,
        output_tokens=100 * done,
        preemptions=5,
        cached_blocks=2,
        prefix_queries=4000 + 1000 * done,
        prefix_hits=250 * done,
        worker_incarnation=255,
        worker_device="cpu",
        uptime_seconds=60 + second,
        rows=[
            pb.RunningRow(
                row=0,
                request_id="first",
                prompt_tokens=100,
                computed_tokens=150,
                output_tokens=50,
                max_tokens=200,
                blocks=10,
                running_seconds=2.5,
            ),
            pb.RunningRow(
                row=3,
                request_id="second",
                prompt_tokens=400,
                computed_tokens=80,
                max_tokens=10,
                blocks=5,
                running_seconds=0.04,
            ),
        ],
        block_owners=OWNERS,
        time_to_first_token=pb.LatencyHistogram(
            bounds_seconds=[0.1, 0.2], counts=[done, 0, 0], sum_seconds=0.1 * done
        ),
        inter_token_latency=pb.LatencyHistogram(
            bounds_seconds=[0.01, 0.03], counts=[0, 99 * done, 0], sum_seconds=0.02 * 99 * done
        ),
    )
    for name, value in changed.items():
        if isinstance(value, list):
            status.ClearField(name)
            getattr(status, name).extend(value)
        else:
            setattr(status, name, value)
    return status


def status(second: float = 0.0, **changed: object) -> ServerStatus:
    return status_from(response(second, **changed))
