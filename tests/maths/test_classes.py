"""Class labels as numbers."""

import pytest
import torch

from warmstart.maths.classes import corners, of_class

pytestmark = pytest.mark.usefixtures("float64")


def test_of_class_marks_a_rows_own_class():
    assert of_class(torch.tensor([2, 0]), 3).tolist() == [[False, False, True], [True, False, False]]


def test_corners_are_alike():
    places = corners(5, torch.zeros(()))
    assert places.shape == (5, 4)
    torch.testing.assert_close(places.sum(0), torch.zeros(4))
    torch.testing.assert_close((places**2).mean(0), torch.ones(4))
    torch.testing.assert_close(torch.cdist(places, places)[~torch.eye(5, dtype=torch.bool)], torch.full((20,), 10**0.5))
