"""The study of affinities on a planted transfer, where half of the sources contradict the target."""

from warmstart.selection import task_model, training
from warmstart.studies.select_affinity import AVERAGE, MAJORITY, OURS, RANK, SIGN, SIZES, Preset, helps


def test_signs_and_ranks_are_found_where_sources_differ(planted):
    short = training.Config(hidden=(8,), steps=60, batch=64, balance=0.0)
    cfg = task_model.Config(size=3, starts=1, held_out=8, training=short)
    chosen = Preset(8, 6, cfg)
    found = helps(planted, chosen, 0)
    both = {(name, metric, size) for name in (OURS, AVERAGE) for metric in (SIGN, RANK) for size in SIZES}
    assert set(found) == both | {(MAJORITY, SIGN, size) for size in SIZES}
    assert all(0.5 <= found[MAJORITY, SIGN, size] <= 1 for size in SIZES)
    assert sum(found[OURS, SIGN, size] for size in SIZES) / 4 > 0.7
    assert sum(found[OURS, RANK, size] for size in SIZES) / 4 > 0.7
