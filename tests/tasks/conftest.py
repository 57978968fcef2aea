"""Training runs without checks of shapes, which take half of the time; test_shapes.py trains every task with them."""

from collections.abc import Iterator
from functools import wraps

import pytest

from regard.training import loop
from shapes import unchecked


@pytest.fixture(scope="session", autouse=True)
def unchecked_training() -> Iterator[None]:
    checked = loop.fit

    @wraps(checked)
    def fit(*arguments: object) -> None:
        with unchecked():
            checked(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "fit", fit)
        yield
