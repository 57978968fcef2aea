"""Without a browser, tests of pages are skipped at home, and fail where CI=true."""

import shutil
import sys

import pytest

from browsing import chromium


@pytest.mark.parametrize("missing", ["chromium", "playwright"])
@pytest.mark.parametrize(("ci", "expected"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_browser_tests_fail_in_ci_alone(
    monkeypatch: pytest.MonkeyPatch, missing: str, ci: str, expected: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else f"/usr/bin/{name}")
    monkeypatch.setitem(sys.modules, "playwright", None)
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception), match=missing) as raised, chromium():
        pass
    assert raised.type is expected
