"""The pages of a generator and of a model it made: errors, the map of tasks, relevance, functions with bands."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from warmstart.core.trees import take
from warmstart.estimators.model_fusion import Generated, ModelFusion
from warmstart.fusion.network import run_models
from warmstart.maths import gp
from warmstart.report import called, plain, versions
from warmstart.report.figures import Curve
from warmstart.report.maps import Banded, bands, task_map
from warmstart.report.page import Section, render_page

MOST = 30  # models in a table
SHOWN = 6  # functions in a picture
CHOICE = "left out, RMSE / range"


def verdict(model: ModelFusion) -> str:
    """The choice in a sentence."""
    errors = {name: float(error.mean()) for name, error in model.errors_.items()}
    rest = sorted((name for name in errors if name != model.chosen_), key=lambda name: errors[name])
    against = f", against {errors[rest[0]]:.4f} of {rest[0]}" if rest else ""
    how = "is taken: left out, a model's function is predicted" if len(rest) > 1 else "was asked for: it errs"
    return f"{model.chosen_} {how} with an error of {errors[model.chosen_]:.4f} of its range{against}."


def ways_table(model: ModelFusion) -> Section:
    lines = []
    for name, error in sorted(model.errors_.items(), key=lambda item: float(item[1].mean())):
        parts = (error.mean(), error.median(), error.max())
        lines.append([name, *(f"{float(part):.4f}" for part in parts), "taken" if name == model.chosen_ else ""])
    head = ["way", "mean", "median", "worst", ""]
    words = "Each model is predicted from the others and compared with what it says itself of the same inputs."
    return Section("Ways of fusing", "\n\n".join([words, *model.notes_]), plain(head, lines, "RMSE over the range"))


def page_of_generator(model: ModelFusion, title: str) -> str:
    error = model.errors_[model.chosen_]
    worst = error.argsort(descending=True).tolist()
    lines = [[model.zoo_.names[i], f"{float(error[i]):.4f}"] for i in worst[:MOST]]
    caption = f"The {len(lines)} worst predicted of {len(worst)} models"
    sections = [
        ways_table(model),
        Section("Leave-one-out error per model", table=plain(["model", CHOICE], lines, caption)),
        Section("Map of tasks", svg=_map(model)),
    ]
    if model.pool_.inputs.shape[1:] == (1,):
        picture = bands(_held_out_panels(model, worst), "the model itself")
        words = "Models that were left out, from the best predicted to the worst; the band is the 90 % interval."
        sections.append(Section("Predicted functions", svg=picture, caption=words))
    return render_page(sections, title, _how(), verdict(model))


def page_of_model(
    model: ModelFusion, made: Generated, known: Tensor, title: str, support: tuple[Tensor, Tensor] | None
) -> str:
    errors = dict(zip(model.zoo_.names, model.errors_[model.chosen_].tolist(), strict=True))
    nearest = [[name, f"{weight:.3f}", f"{errors[name]:.4f}"] for name, weight in list(made.relevance.items())[:10]]
    words = "The process's mean is the sum of the pool's functions, weighed so; weights may be negative."
    sections = [
        Section("Relevance of the pool", words, plain(["model", "weight", CHOICE], nearest)),
        Section("Map of tasks", svg=_map(model, known)),
    ]
    if model.pool_.inputs.shape[1:] == (1,):
        x = model.pool_.inputs
        mean, low, high = (part[:, 0].numpy() for part in made.predict(x))
        shown = () if support is None else tuple(part.flatten().numpy() for part in support)
        panel = Banded(title, Curve(x[:, 0].numpy(), mean, low, high), (), *shown)
        caption = f"The band is the {made.level:.0%} interval."
        sections.insert(0, Section("Predicted function", svg=bands([panel], ""), caption=caption))
    rows = f" after {made.shots} rows" if made.shots else ""
    told = f"Made by {model.chosen_}{rows}; {made.interval}."
    return render_page(sections, title, _how(), f"{told} {made.warning}".strip())


def _map(model: ModelFusion, new: Tensor | None = None) -> str:
    """The first two columns, or the two main directions of more."""
    at, names = model.zoo_.descriptor.double(), model.zoo_.columns.names
    star = at[:0] if new is None else new.double().reshape(1, -1)
    if at.shape[1] == 1:
        at, star = (torch.cat([part, torch.zeros_like(part)], 1) for part in (at, star))
        labels = (f"{names[0]} (standardised)", "")
    elif at.shape[1] == 2:
        labels = (f"{names[0]} (standardised)", f"{names[1]} (standardised)")
    else:
        centre = at.mean(0)
        directions = torch.linalg.svd(at - centre, full_matrices=False)[2][:2]
        at, star = (at - centre) @ directions.mT, (star - centre) @ directions.mT
        labels = ("first principal direction of the descriptors", "second")
    return task_map(at.numpy(), model.errors_[model.chosen_].numpy(), labels, CHOICE, star.numpy())


def _held_out_panels(model: ModelFusion, worst: list[int]) -> list[Banded]:
    """From the best predicted to the worst."""
    count = min(SHOWN, len(worst))
    chosen = [worst[-1 - round(k * (len(worst) - 1) / max(count - 1, 1))] for k in range(count)]
    x = model.pool_.inputs
    said = run_models(model.network_, take(model.held_out_, torch.tensor(chosen)), x)[..., 0]
    unsure = gp.leave_one_out(model.process_)[1].sqrt()
    half = model.width(0.9)[0] * unsure[chosen]
    axis = x[:, 0].numpy()
    return [
        Banded(
            model.zoo_.names[i],
            Curve(axis, said[k].numpy(), (said[k] - half[k]).numpy(), (said[k] + half[k]).numpy()),
            model.pool_.outputs[i, :, 0].numpy(),
        )
        for k, i in enumerate(chosen)
    ]


def _how() -> Mapping[str, str]:
    return {
        "Command": called(),
        "Versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
