"""What tests of other libraries' trainers share: a dataset, and what their processes saw of it."""

from __future__ import annotations

from typing import Any

import pytest

from storage_loader import DataConfig
from tests.support.launched import launch
from tests.support.rows import config, save_rows


@pytest.fixture(scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DataConfig:
    """Rows 0 to the module's `COUNT` - 1, a commit of every 40."""
    the_config = config({"storage": str(tmp_path_factory.mktemp("store"))})
    return save_rows(the_config, request.module.COUNT, 40, commits=True)


@pytest.fixture(scope="module")
def said(
    request: pytest.FixtureRequest, saved: DataConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, list[Any]]:
    """What the module's `MODULE` says as one process, and what each of two ranks does."""
    module, scratch = request.module, tmp_path_factory.mktemp("scratch")
    return launch(module.LIBRARY, module.MODULE, saved.storage, scratch)
