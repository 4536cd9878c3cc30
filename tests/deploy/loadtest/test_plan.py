"""Plans: what cannot be run is refused with name, value and limit."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from deploy.loadtest.arrivals import Burst, Closed, Open, Ramp, Replay
from deploy.loadtest.goodput import Limits
from deploy.loadtest.lengths import Uniform
from deploy.loadtest.plan import Content, LoadPlan, Mixed512, Nanoserve, OpenAI

HERE = Nanoserve("127.0.0.1:1")
CHAT = OpenAI("http://h:1", "chat")


def plan(target: Any = HERE, arrivals: Any = None, **others: Any) -> LoadPlan:
    return LoadPlan(target, arrivals or Open(1), **({"requests": 1} | others))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"requests": None}, "neither requests nor seconds is given"),
        ({"requests": 0}, "requests is 0, must be 1 to 1e+06"),
        ({"seconds": -1}, "seconds is -1, must be 0.1 to 86400 seconds"),
        ({"seconds": float("nan")}, "seconds is nan"),
        ({"seed": -1}, "seed is -1, must be 0 to"),
        ({"cancel_share": 1.1}, "cancel-share is 1.1, must be 0 to 1"),
        ({"slow_share": -0.1}, "slow-share is -0.1, must be 0 to 1"),
        ({"processes": 0}, "processes is 0, must be 1 to 256"),
        ({"vocab_size": 0}, "vocab-size is 0, must be 1 to"),
        ({"arrivals": Burst(), "requests": None, "seconds": 1}, "a burst needs requests"),
        ({"seconds": 2, "warm_up_seconds": 2}, "warm-up-seconds is 2, must be less than seconds"),
        ({"arrivals": Burst(), "warm_up_seconds": 2}, "does not go with burst and ramp"),
        ({"arrivals": Ramp(1), "seconds": 19}, "seconds is 19, must be at least stage-seconds, 20"),
        ({"arrivals": Replay()}, "a replay needs content with a trace"),
        ({"target": CHAT}, "endpoint chat takes text, not token ids"),
        ({"target": CHAT, "content": Mixed512()}, "endpoint chat takes text, not token ids"),
        (
            {"target": OpenAI("http://h:1"), "content": Content(turns=2)},
            "turns is 2: conversations with an OpenAI server need endpoint chat",
        ),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        plan(**values)
    assert message in str(refused.value)


def test_content_and_targets_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="turns is 0, must be 1 to 1000"):
        Content(turns=0)
    with pytest.raises(ValueError, match="prefixes is 0, must be 1 to"):
        Content(prefixes=0)
    with pytest.raises(ValueError, match="must start with http:// or https://"):
        OpenAI("h:1")
    with pytest.raises(ValueError, match="must be completions or chat"):
        OpenAI("http://h:1", "other")


def test_settings_are_json_and_say_everything() -> None:
    content = Content(prompt=Uniform(1, 2), text=Path("some/text"))
    made = plan(CHAT, Ramp(2), content=content, seed=9, goodput=Limits(ttft=500))
    settings = json.loads(json.dumps(made.settings()))
    assert settings["seed"] == 9
    assert settings["target"] == {
        "kind": "OpenAI",
        "url": "http://h:1",
        "endpoint": "chat",
        "model": "",
        "body": {},
    }
    assert settings["arrivals"]["kind"] == "Ramp"
    assert settings["content"]["prompt"] == {"kind": "Uniform", "low": 1, "high": 2}
    assert settings["content"]["text"] == "some/text"
    assert settings["goodput"] == {
        "kind": "Limits",
        "ttft": 500,
        "tpot": None,
        "gap": None,
        "e2e": None,
    }
    assert settings["requests"] == 1


def test_a_plan_reaches_another_process_whole() -> None:
    made = plan(arrivals=Closed(3), content=Content(turns=2), goodput=Limits(e2e=1))
    assert pickle.loads(pickle.dumps(made)) == made
