import torch

from warmstart.core import Learner, Prediction, adapt, keep, make_batch

# a method that writes down what is asked of it
scribe = Learner(
    init=lambda params: params,
    start=lambda state, descriptor: ("start", descriptor),
    step=lambda state, inner, batch, noise: (*inner, noise),
    finish=lambda state, inner, batch: (*inner, "finish", batch),
    predict=lambda state, adapted, x, noise: Prediction(x),
    meta_grad=lambda state, task, noise: ((), ()),
    update=lambda state, delta, count: state,
    steps=2,
)
support = make_batch(torch.zeros(1, 1), torch.zeros(1))


def test_adapt_is_start_then_steps_then_finish_each_with_its_own_noise():
    noise = torch.tensor([5.0, 6.0, 7.0])
    assert adapt(scribe, {}, support, "d", noise) == ("start", "d", 5.0, 6.0, "finish", support)
    assert adapt(scribe, {}, support, "d", noise, steps=3) == ("start", "d", 5.0, 6.0, 7.0, "finish", support)
    assert adapt(scribe, {}, support, "d", steps=1) == ("start", "d", (), "finish", support)


def test_zero_steps_are_zero_steps_not_the_default():
    assert adapt(scribe, {}, support, "d", steps=0) == ("start", "d", "finish", support)


def test_keep_gives_what_was_reached():
    inner = object()
    assert keep({}, inner, support) is inner
