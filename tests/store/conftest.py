"""What several tests of stores share."""

import pytest
from killing import Nursery, shim


@pytest.fixture(scope="session")
def shim_path(tmp_path_factory):
    return shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="session")
def nursery(shim_path):
    found = Nursery(shim_path)
    yield found
    found.close()
