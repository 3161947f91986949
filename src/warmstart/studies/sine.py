"""Sine regression (gradient-em, section 5.1; Finn et al., 2017, section 5.1).

y = A sin(x - b); 5 or 10 points of an unseen sine are shown, the error on fresh points is measured
after 0, 1, 5 and 10 gradient steps. Reference, 5 points: MAML 0.67 / 0.38 / 0.35 after 1 / 5 / 10
steps, joint pre-training 2.41 / 2.23 / 2.19.
"""

from __future__ import annotations

STEPS = (0, 1, 5, 10)
SHOTS = (5, 10)
TEST_SEED = 20_000  # no training draw uses it
