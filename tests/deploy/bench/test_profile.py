"""Where a step's time goes: the arithmetic on traces made by hand, and a run on this CPU."""

from __future__ import annotations

import json
import threading
import time
from os import getpid
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from deploy.bench.profile.__main__ import main
from deploy.bench.profile.account import Account
from deploy.bench.profile.first_token import FirstToken, requests_of_prompts
from deploy.bench.profile.kernel_times import KernelTimes, Wanted
from deploy.bench.profile.picture import plot_timeline
from deploy.bench.profile.steps import Steps, steady_decodes, steps_of_prompts
from deploy.bench.profile.thread_times import spent_by_name, thread_times
from deploy.bench.profile.trace_file import Trace, TraceFile
from deploy.bench.profile.traced_hub import COLUMNS as HUB
from deploy.bench.profile.traced_scheduler import COLUMNS as SCHEDULER
from deploy.bench.profile.traced_worker import COLUMNS as WORKER
from tests.tiny_llama import tiny_llama
from worker.runner import _scratch_step
from worker.step import CheckedStep

MS = 1_000_000


def traces(steps: int, *, inline: bool = False, streams: int = 2) -> tuple[Trace, Trace]:
    """A step each 10 ms: idle 1 ms, forward 6 ms, sampling 2 ms, copy 1 ms. Step n is on the device
    from 10 n + 1 to 10 n + 9 ms, and done when 10 n + 10 are over; `inline`: the device is the
    worker, which is busy for 9 ms and idle for 1."""
    sent, launched = TraceFile(SCHEDULER), TraceFile(WORKER)
    for n in range(steps):
        begin = 10 * n * MS
        sending = begin - 20 * MS if not inline else begin - 5 * MS
        arrived = sending + 2 * MS
        launching = arrived + 1 * MS + MS // 2  # 1 ms in the queue, half of one for checks
        done = begin + 10 * MS
        at = launching + 2 * MS if not inline else done
        work = at - launching - (9 * MS if inline else 0)
        device = (7 * MS, 2 * MS, 1 * MS) if inline else (6 * MS, 2 * MS, 1 * MS)
        launched.add(n, launching, at, at if inline else done)
        answered = done + MS // 2
        sent.add(
            *(n, streams, streams, sending, sending + MS, answered + MS),
            *(MS, work + MS // 2, device[0], device[1], answered - arrived, device[2]),
        )
    return read(sent), read(launched)


def read(file: TraceFile) -> Trace:
    columns = np.array(file.steps, np.int64).T
    return Trace(dict(zip(file.columns, columns, strict=True)), file.threads, file.kernels)


def steady(steps: int, **more: bool) -> Steps:
    return steady_decodes(*traces(steps, **more), 2, -(10**12), 10**12)


def test_steps_of_both_processes_lie_on_one_clock() -> None:
    steps = steady(10)
    assert len(steps) == 8
    # The first of them, step 1, is handed over at -10 ms.
    first = {
        name: getattr(steps, name)[0] for name in Steps.__slots__ if name not in ("copy", "origin")
    }
    assert first == {
        **{"sending": 0.0, "sent": 1.0, "arrived": 2.0, "started": 3.0, "launching": 3.5},
        **{"launched": 5.5, "computing": 21.0, "sampling": 27.0, "sampled": 29.0},
        **{"done": 30.0, "answered": 30.5, "taken": 31.5, "idle": 1.0, "planning": 0.0},
    }
    assert steps.copy == pytest.approx(1.0)
    assert steps.interval == pytest.approx(10.0)


def test_a_step_is_planned_from_the_last_answer_or_step_on() -> None:
    steps = steady(10)
    # Step 5 is handed over at 40 ms of them, step 4 was at 31, and answer 1 came at 31.5.
    assert steps.sending[4] == 40.0
    assert steps.planning[4] == 31.5


def test_where_the_device_is_the_worker_its_time_is_no_host_work() -> None:
    steps = steady(10, inline=True)
    assert steps.copy == pytest.approx(0.0)
    np.testing.assert_allclose(steps.sampled, steps.launched)
    np.testing.assert_allclose(steps.sampling - steps.computing, 7.0)
    np.testing.assert_allclose(steps.started - steps.arrived, 1.0)
    np.testing.assert_allclose(steps.launching - steps.started, 0.5)


def test_jitter_in_finding_a_step_done_does_not_move_the_device() -> None:
    scheduler, worker = traces(20)
    late = worker.columns["done"]
    late[5] += 3 * MS
    late[9] += 7 * MS
    steps = steady_decodes(scheduler, worker, 2, -(10**12), 10**12)
    np.testing.assert_allclose(np.diff(steps.sampled), 10.0)
    assert (steps.done - steps.sampled - steps.copy).min() == pytest.approx(0.0)


def test_only_decodes_of_all_streams_between_two_moments_count() -> None:
    scheduler, worker = traces(40)
    scheduler.columns["tokens"][:12] = 512  # prompts
    scheduler.columns["sequences"][33:] = 1  # others have ended
    steps = steady_decodes(scheduler, worker, 2, 0, 10**12)
    assert len(steps) == 21 - 2 * 2
    with pytest.raises(ValueError, match="2 steady steps of 2 streams, at least 4 are needed"):
        steady_decodes(scheduler, worker, 2, 0, 150 * MS)
    with pytest.raises(ValueError, match="0 steady steps of 3 streams"):
        steady_decodes(scheduler, worker, 3, 0, 10**12)


def test_a_prompts_way_from_the_client_and_back_is_told_part_by_part() -> None:
    scheduler, worker = traces(8)
    # Steps 4 and 6 are of prompts: handed over at 20 and 40 ms, taken at 51.5 and 71.5.
    due, sent, seen = [0.0175, 0.0365], [0.0176, 0.0366], [0.0535, 0.0745]
    steps = steps_of_prompts(scheduler, worker, [(0.0175, 0.021), (0.0365, 0.041)])
    found = FirstToken(512, steps, due, sent, seen)
    assert found.milliseconds == pytest.approx(37.0)
    parts = found.parts
    np.testing.assert_allclose(sum(found.spans.values()), [36.0, 38.0])
    assert parts["client"] == pytest.approx(0.1)
    assert parts["front end, engine"] == pytest.approx((2.4 + 3.4) / 2)
    assert parts["engine, front end, client"] == pytest.approx((2.0 + 3.0) / 2)
    assert parts["device, forward"] == pytest.approx(6.0)
    # From launching, at 23.5 ms, to done, at 50, less forward and sampling.
    assert parts["launch, found done"] == pytest.approx(26.5 - 8)
    assert (parts["wire, out"], parts["check"], parts["wire, back"]) == (1.0, 0.5, 1.0)
    assert "first token of one prompt of 512: 37.00 ms, medians over 2 prompts" in found.describe()


def test_with_front_ends_apart_their_part_of_a_prompts_way_is_told() -> None:
    scheduler, worker = traces(8)
    hub = TraceFile(HUB)
    hub.add(18 * MS, 19 * MS, 52 * MS)
    hub.add(30 * MS, 31 * MS, 32 * MS)  # of another client, before
    hub.add(38 * MS, 39 * MS, 73 * MS)
    due, sent, seen = [0.0175, 0.0365], [0.0176, 0.0366], [0.0535, 0.0745]
    spans = [(0.0175, 0.021), (0.0365, 0.041)]
    steps = steps_of_prompts(scheduler, worker, spans)
    requests = requests_of_prompts(read(hub), spans)
    found = FirstToken(512, steps, due, sent, seen, requests)
    np.testing.assert_allclose(sum(found.spans.values()), [36.0, 38.0])
    parts = found.parts
    assert parts["to the front end"] == pytest.approx((0.4 + 1.4) / 2)
    assert parts["front end"] == pytest.approx(1.0)
    assert parts["engine"] == pytest.approx(1.0)
    assert parts["engine, back"] == pytest.approx((0.5 + 1.5) / 2)
    assert parts["front end, client"] == pytest.approx(1.5)
    # A client that tells the time only after its call has come.
    late = FirstToken(512, steps, due, [0.0185, 0.0366], seen, requests).spans
    np.testing.assert_allclose(late["client"], [0.5, 0.1])
    np.testing.assert_allclose(late["to the front end"], [0.0, 1.4])
    with pytest.raises(ValueError, match="2 requests came where one was sent"):
        requests_of_prompts(read(hub), [(0.0175, 0.021), (0.025, 0.041)])


def test_a_prompt_of_several_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt took 3 steps, not one"):
        steps_of_prompts(*traces(8), [(0.0175, 0.021), (0.0175, 0.041)])


def account(streams: int = 2) -> Account:
    threads = {"worker": {"step-loop": 3.0, "tiny": 0.01}}
    kernels = [{"name": "gemv_kernel", "us_per_step": 700.0, "launches_per_step": 33.0}]
    return Account(streams, steady(12), threads, kernels)


def test_an_account_tells_shares_of_a_step() -> None:
    of = account()
    assert of.idle_share == pytest.approx(0.1)
    assert (of.idle_target, account(32).idle_target) == (0.08, 0.03)
    parts = {name: round(value, 6) for name, value in of.parts.items() if name != "plan"}
    assert parts == {
        **{"encode": 1.0, "wire, out": 1.0, "queue": 1.0, "check": 0.5, "launch": 2.0},
        **{"device, idle before": 1.0, "device, forward": 6.0, "device, sampling": 2.0},
        **{"found done": 0.0, "answer": 0.5, "wire, back": 1.0, "device, copy": 1.0},
    }
    shown = of.describe()
    assert "batch 2: a step every 10.000 ms, over 10 steps" in shown
    assert "busy 9.000 ms, idle 1.000 ms = 10.0% (to stay under 8%)" in shown
    assert "worker, CPU ms of a step: 3.010, step-loop 3.000\n" in shown
    assert "700.0 us in   33.0 of gemv_kernel" in shown
    assert of.to_json()["cpu_ms"]["worker"]["tiny"] == 0.01


@pytest.mark.parametrize("count", [3, 100])
def test_a_picture_shows_as_many_steps_as_there_are(tmp_path: Path, count: int) -> None:
    plot_timeline(account(), count, "by hand", tmp_path / "x.png")
    height, width, _ = imread(tmp_path / "x.png").shape
    assert (width, height) == (1560, 672)


def test_a_trace_is_read_back_in_the_order_of_steps(tmp_path: Path) -> None:
    trace = TraceFile(WORKER)
    trace.add(2, 30, 40, 50)
    trace.add(1, 3, 4, 5)
    trace.kernels = [[{"name": "a", "us_per_step": 1.0}]]
    trace.save(tmp_path / "x")
    found = Trace.load(tmp_path / "x")
    assert found.columns["step_id"].tolist() == [1, 2]
    assert found.columns["done"].tolist() == [5, 50]
    assert found.threads[threading.main_thread().native_id or 0] == "MainThread"
    assert found.kernels == trace.kernels


def test_threads_are_told_by_name_and_those_without_one_together() -> None:
    spent = spent_by_name({1: 1.0, 2: 1.0}, {1: 1.5, 2: 3.0, 3: 0.25, 4: 0.25}, {1: "a", 2: "b"})
    assert spent == {"b": 2.0, "a": 0.5, "others": 0.5}
    assert list(spent) == ["b", "a", "others"]


def test_a_threads_cpu_time_is_that_of_its_work() -> None:
    own = threading.get_native_id()
    before, start = thread_times(getpid())[own], time.thread_time()
    while time.thread_time() - start < 0.05:
        pass
    assert thread_times(getpid())[own] - before >= 0.04
    assert thread_times(2**22 + 1) == {}


def test_kernels_are_those_of_steps_that_decode_every_stream(tmp_path: Path) -> None:
    """Prompts take most of a batch's first steps, and what they launch is not what is asked for."""
    wanted = tmp_path / "kernels"
    wanted.write_text(str(Wanted(steps=3, streams=2)))
    kernels, began = KernelTimes(wanted), []
    prompt, one, two = step_of(7, 7), step_of(1), step_of(1, 1)
    for step in [*[two] * 16, prompt, step_of(1, 7), one, *[two] * 4]:
        kernels.before_step(step)
        began.append(kernels._profiler is not None)
    assert began == [False] * 19 + [True] * 3 + [False]
    assert len(kernels.found) == 1
    assert not wanted.exists()


def step_of(*lens: int) -> CheckedStep:
    return _scratch_step(list(lens), 16)


def test_a_profile_of_a_small_model_on_this_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # So narrow that products are a library's: its profiler sees no kernels of our own.
    model = tiny_llama(tmp_path / "model", hidden_size=48)
    flags = ("--model", str(model), "--streams", "2", "--prompt", "8", "--output", "60")
    more = ("--clients", "1", "--frontends", "1", "--worker-args=--threads 1 --device cpu")
    assert main([*flags, *more, "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / "out" / "profile.json").read_text())
    (found,) = report["accounts"]
    assert found["streams"] == 2
    assert found["steps"] > 20
    parts = found["parts_ms"]
    device = sum(ms for name, ms in parts.items() if name.startswith("device"))
    assert device == pytest.approx(found["interval_ms"], rel=0.1)
    assert parts["launch"] >= parts["device, forward"] > 0
    assert found["cpu_ms"]["worker"]["step-loop"] > 0
    assert found["cpu_ms"]["scheduler"]["engine"] > 0
    products = [k for k in found["kernels"] if k["name"] == "mkldnn::_linear_pointwise"]
    # Four of each of two layers, whose widest is cut in two, and the head.
    assert products[0]["launches_per_step"] == 11
    parts = report["first_token"]["parts_ms"]
    assert min(parts.values()) > -0.1
    assert max(parts.values()) < report["first_token"]["ms"]
    assert (tmp_path / "out" / "batch-2.png").stat().st_size > 10_000
    assert "batch 2: a step every" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--streams", "1", "0"], "--streams is 0, must be at least 1"),
        (["--steps", "0"], "--steps is 0, must be at least 1"),
        (["--output", "-1"], "--output is -1, must be at least 1"),
        (["--random", "2b"], "invalid choice: '2b'"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_model_that_is_not_there_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path / "none"), "--out", str(tmp_path)]) == 1
    assert "bench-profile: " in capsys.readouterr().err
