"""All programs of instances that tests build as native code can be read back as text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto.batching.host.host_program import HostProgram
from stretto.batching.instance_program import InstanceProgram
from stretto.options import Options
from tests.batching.texts import assert_reads_back


@pytest.fixture(autouse=True)
def texts_of_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    built = HostProgram.__init__

    def build(self: HostProgram, program: InstanceProgram, options: Options | None = None) -> None:
        built(self, program, options)
        assert_reads_back(program, is_valid=False)  # some are written by hand for the runtime only

    monkeypatch.setattr(HostProgram, "__init__", build)
    yield
