"""Tests of faults that ask for it run by both seams: kube-scheduler's extender, and its plugin."""

import pytest


@pytest.fixture(params=["extender", "plugin"])
def seam(request: pytest.FixtureRequest) -> str:
    """How kube-scheduler asks in this test; for `bed`."""
    return str(request.param)
