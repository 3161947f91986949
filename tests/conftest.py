"""Every test starts from the same settings: one thread, the default dtype, fixed seeds."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile("house", deadline=None, derandomize=True, database=None, max_examples=30)
settings.load_profile("house")

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_settings():
    kept = torch.get_default_dtype()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(kept)


@pytest.fixture
def float64(fresh_settings):
    """Double precision for one test; `fresh_settings` takes it back."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture(scope="session")
def shared_data():
    """The folder of public datasets: WARMSTART_DATA, or shared/data beside the repository."""
    folder = Path(os.environ.get("WARMSTART_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no public datasets in {folder}; set WARMSTART_DATA")
    return folder
