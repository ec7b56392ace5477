"""The heatmap's colours as people with each kind of colour blindness see them."""

import numpy as np
import pytest

from tests.factories import NodeFactory

# Severity 1.0, linear RGB: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color
# Vision Deficiency", 2009.
EYES = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def lightness(colours, eyes):
    """L* of CIELAB, as these eyes see sRGB colours."""
    part = np.array(colours) / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    luminance = np.clip(linear @ np.array(EYES[eyes]).T, 0, 1) @ [0.2126, 0.7152, 0.0722]
    return np.where(luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance)


@pytest.fixture(scope="module")
def colours(browser, live_app):
    """{(name, dark): colours} of the page's own module."""
    NodeFactory(name="n1")
    page = browser.new_page(base_url=live_app.url)
    page.goto("/sign-in/")
    found = page.evaluate("""async () => {
        const { palette, statePalette } = await import("/static/js/fleet/scale.js");
        return [false, true].map((dark) => [palette(dark).rgb, statePalette(dark).rgb]);
    }""")
    page.close()
    return {(name, dark): found[dark][at] for dark in (0, 1) for at, name in enumerate(("measure", "health"))}


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("dark", [pytest.param(0, id="light"), pytest.param(1, id="dark")])
def test_more_is_always_further_from_the_page(colours, dark, eyes):
    """VIEW-1 the order of values needs no hue: lightness alone tells it, in every tenth of the scale."""
    steps = np.diff(lightness(colours["measure", dark], eyes)[1:]) * (1 if dark else -1)
    assert steps.min() > -0.15, "no step back beyond what eight bits round"
    tenths = np.diff(lightness(colours["measure", dark], eyes)[[1, *range(25, 256, 25)]]) * (1 if dark else -1)
    assert tenths.min() > 2


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("dark", [pytest.param(0, id="light"), pytest.param(1, id="dark")])
def test_each_state_of_health_is_as_light_as_no_other(colours, dark, eyes):
    """VIEW-1 states differ in lightness, the worse the further from the page."""
    steps = np.diff(lightness(colours["health", dark], eyes)) * (1 if dark else -1)
    assert steps.min() > 5
