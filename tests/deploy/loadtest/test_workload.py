"""Requests as planned: functions of the seed and their index."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from deploy.loadtest.arrivals import Closed, Open
from deploy.loadtest.lengths import Fixed, LogNormal, Uniform
from deploy.loadtest.plan import Content, LoadPlan, Mixed512, Nanoserve
from deploy.loadtest.workload import Request, Workload

VOCAB = 1000
VARIED = Content(Uniform(1, 50), LogNormal(30, 1), prefix=4, prefixes=3)


def a_plan(content: Content | Mixed512 = VARIED, seed: int = 1, **others: object) -> LoadPlan:
    target, arrivals = Nanoserve("127.0.0.1:1"), Open(10)
    return LoadPlan(target, arrivals, content, requests=100, seed=seed, **others)  # type: ignore[arg-type]


def requests(plan: LoadPlan, indices: range = range(-5, 60)) -> list[Request]:
    workload = Workload(plan, VOCAB)
    return [workload.request(index) for index in indices]


def test_the_same_seed_gives_the_same_requests_whatever_else_was_made_before() -> None:
    plan = a_plan(cancel_share=0.5, slow_share=0.5)
    assert requests(plan) == requests(plan)
    assert requests(plan)[40:] == requests(plan, range(35, 60))
    assert len({request.prompt for request in requests(plan)}) == 65


def test_the_same_seed_gives_the_same_arrival_times() -> None:
    one, other = (Workload(a_plan(seed=seed), VOCAB).arrival_seed(0) for seed in (1, 2))
    again = Workload(a_plan(seed=1), VOCAB).arrival_seed(0)
    times = [Open(10).times(seed, 50, 100.0).tolist() for seed in (one, again, other)]
    assert times[0] == times[1]
    assert times[0] != times[2]


def test_another_seed_gives_other_requests() -> None:
    pairs = zip(requests(a_plan(seed=1)), requests(a_plan(seed=2)), strict=True)
    assert all(a.prompt != b.prompt and a.seed != b.seed for a, b in pairs)


def test_a_share_of_cancels_changes_nothing_else() -> None:
    plain, cancelled = requests(a_plan()), requests(a_plan(cancel_share=0.4))
    assert [replace(request, cancel_after=None) for request in cancelled] == plain
    cut = [request for request in cancelled if request.cancel_after is not None]
    assert 15 <= len(cut) <= 37
    assert all(0 <= (r.cancel_after or 0) < r.output_len for r in cut)
    assert all(r.cancel_after is not None for r in requests(a_plan(cancel_share=1.0)))


def test_a_share_of_slow_readers_changes_nothing_else() -> None:
    plain, slow = requests(a_plan()), requests(a_plan(slow_share=0.4))
    assert [replace(request, is_slow=False) for request in slow] == plain
    assert 15 <= sum(request.is_slow for request in slow) <= 37


def test_ids_are_within_the_vocabulary_and_lengths_as_asked() -> None:
    for request in requests(a_plan(Content(Fixed(20), Fixed(7)))):
        assert isinstance(request.prompt, tuple)
        assert len(request.prompt) == request.prompt_len == 20
        assert request.output_len == 7
        assert all(type(i) is int and 0 <= i < VOCAB for i in request.prompt)


def test_shared_prefixes_are_few_and_before_every_prompt() -> None:
    made = requests(a_plan(Content(Fixed(5), Fixed(1), prefix=16, prefixes=3)))
    assert {len(request.prompt) for request in made} == {21}
    assert {request.prompt_len for request in made} == {21}
    assert len({request.prompt[:16] for request in made}) == 3
    assert len({request.prompt[16:] for request in made}) == len(made)


def test_only_a_conversation_s_first_turn_has_the_shared_prefix() -> None:
    content = Content(Fixed(5), Fixed(1), prefix=16, turns=3)
    made = requests(a_plan(content), range(6))
    assert [request.turn for request in made] == [0, 1, 2, 0, 1, 2]
    assert [len(request.prompt) for request in made] == [21, 5, 5, 21, 5, 5]


def test_prompts_of_text_are_its_words_in_order_from_a_random_one_on(tmp_path: Path) -> None:
    path = tmp_path / "text"
    words = [f"w{i}" for i in range(50)]
    path.write_text("\n ".join(words))
    made = requests(a_plan(Content(Fixed(60), Fixed(1), text=path)))
    starts = set()
    for request in made:
        assert isinstance(request.prompt, str)
        first = words.index(request.prompt.split()[0])
        starts.add(first)
        assert request.prompt == " ".join(words[(first + i) % 50] for i in range(60))
    assert len(starts) > 20


def test_lengths_and_groups_of_a_trace_come_over_and_over(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("time,prompt_len,output_len,group\n0,3,4,a\n1,5,6,b\n")
    made = requests(a_plan(Content(trace=path)), range(4))
    shapes = [(len(r.prompt), r.output_len, r.group) for r in made]
    assert shapes == [(3, 4, "a"), (5, 6, "b"), (3, 4, "a"), (5, 6, "b")]


def test_mixed512_is_the_workload_that_servers_are_compared_by() -> None:
    workload = Workload(a_plan(Mixed512()), 128_000)
    made = [workload.request(index) for index in range(512)]
    assert sum(len(request.prompt) for request in made) == 288_825
    assert sum(request.output_len for request in made) == 137_391
    rng = np.random.default_rng(0)
    prompt_lens, output_lens = rng.integers(64, 1025, 512), rng.integers(16, 513, 512)
    for request, prompt_len, output_len in zip(made, prompt_lens, output_lens, strict=True):
        assert list(request.prompt) == rng.integers(0, 128_000, prompt_len).tolist()
        assert request.output_len == output_len
    assert workload.request(513).prompt == made[1].prompt
    small = Workload(a_plan(Mixed512()), VOCAB).request(7).prompt
    assert list(small) == [i % VOCAB for i in made[7].prompt]


def test_a_closed_loop_has_the_same_requests_as_an_open_one() -> None:
    plan = a_plan()
    assert requests(replace(plan, arrivals=Closed(3))) == requests(plan)
