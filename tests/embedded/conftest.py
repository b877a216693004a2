"""What the tests of `partage up` share."""

from collections.abc import Iterator

import browser
import pytest


@pytest.fixture(scope="session", autouse=True)
def one_browser() -> Iterator[None]:
    """The browser that tests of pages share ends with the session."""
    yield
    browser.end()
