"""What is compiled here is also compared with the interpreter, at the first call."""

import pytest

from stretto.runtime import interpreter_check


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_CHECK", "1")
    monkeypatch.setattr(interpreter_check, "SECONDS", 2.0)
