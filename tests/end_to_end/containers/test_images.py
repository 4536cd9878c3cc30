"""What the images are made of."""

from __future__ import annotations

import json

import pytest

from tests.deploy.test_images import pins
from tests.end_to_end.containers.deployment import IMAGES, SIMULATED
from tests.end_to_end.containers.engine import docker

MADE_OF = {
    IMAGES["SCHEDULER_IMAGE"]: ("scheduler",),
    IMAGES["LOADTEST_IMAGE"]: ("scheduler", "loadtest"),
    IMAGES["WORKER_IMAGE"]: ("worker", "torch-cuda", "constraints"),
    IMAGES["MODEL_IMAGE"]: ("worker", "torch-cuda", "model", "constraints"),
    SIMULATED: ("worker",),
}
INSTALLED = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.name: d.version for d in m.distributions()}))"
)


@pytest.mark.parametrize("image", MADE_OF)
def test_an_image_has_the_packages_whose_versions_are_pinned_and_no_other(
    images: None, image: str
) -> None:
    run = ("run", "--rm", "--network", "none", "--entrypoint", "python", image, "-c", INSTALLED)
    installed = json.loads(docker(*run))
    found = {
        name.lower().replace("_", "-"): version.partition("+")[0]  # torch's build, if it is told
        for name, version in installed.items()
    }
    pinned = {name: str(version) for name, version in pins(*MADE_OF[image]).items()}
    assert len(found) > 5
    assert found == {name: pinned.get(name, "not pinned") for name in found}
