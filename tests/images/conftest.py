"""The images, built once a session."""

from collections.abc import Iterator

import pytest

from tests.images.tools import IMAGES, Image, build, forget, why_not


@pytest.fixture(scope="session")
def images() -> Iterator[dict[str, Image]]:
    """By name."""
    if why := why_not():
        pytest.skip(why)
    built = {name: build(name) for name in IMAGES}
    yield built
    for image in built.values():
        forget(image)


@pytest.fixture(params=list(IMAGES))
def image(request: pytest.FixtureRequest, images: dict[str, Image]) -> Image:
    """Each image."""
    return images[request.param]
