"""The benchmark of a whole training on pictures: small, and its sums."""

import pytest

from warmstart.benches import picture_training
from warmstart.benches.picture_training import MINUTES, SPEED


def test_time_and_speed_tell_the_same():
    results = picture_training.run("cpu", updates=2, classes=10, tasks=2, looked_at=2)
    at = {row.metric: row.mean for row in results.rows}
    assert set(at) == {MINUTES, SPEED}  # memory is told of a GPU
    assert at[MINUTES] * 60 * at[SPEED] == pytest.approx(2)
    assert "2 updates" in picture_training.sections(results)[0].prose
