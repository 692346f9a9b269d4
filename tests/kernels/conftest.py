"""Kernel tests run on a GPU where there is one, and in Triton's interpreter elsewhere."""

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
