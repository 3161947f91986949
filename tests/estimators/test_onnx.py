"""The exported file says what the model says, for any number of rows."""

import numpy as np
import pytest

runtime = pytest.importorskip("onnxruntime", reason="extra onnx is not installed")


@pytest.mark.parametrize("name", ["empirical_bayes", "maml"])
def test_onnx_agrees_with_the_model(fitted, new_task, tmp_path, tables, name):
    support, _, known = new_task
    adapted = fitted(name).adapt(support, known)
    adapted.export(tmp_path / "m.onnx")
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    outputs = [entry.name for entry in session.get_outputs()]
    assert outputs == (["mean", "variance"] if name == "empirical_bayes" else ["mean"])
    unseen = tables[0].iloc[:9].assign(colour="purple", tags="z|a")
    for rows in (tables[0].iloc[:1], tables[0].iloc[:50], unseen):
        said = adapted.predict(rows)
        x = adapted.trained.schema.transform_rows(rows)
        found = session.run(None, {entry.name: x[entry.name].numpy() for entry in session.get_inputs()})
        np.testing.assert_allclose(found[0], said.mean, rtol=1e-4, atol=1e-4)
        if len(found) > 1:
            np.testing.assert_allclose(found[1], said.variance, rtol=1e-3)


def test_missing_extra_is_named(fitted, new_task, tmp_path, monkeypatch):
    import sys

    from warmstart.core import InputError

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"warmstart\[onnx\]"):
        fitted("maml").adapt(new_task[0]).export(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
