"""What `fit` and `adapt` do with pictures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from warmstart.cli.output import Voice
from warmstart.cli.writing import check_writable

if TYPE_CHECKING:
    from warmstart.estimators.picture_judging import Judged
    from warmstart.estimators.picture_learner import PictureLearner
    from warmstart.estimators.picture_model import AdaptedPictures

PREDICTIONS, SHEET = "predictions.csv", "contact_sheet.html"
MOST = 40  # lines printed; a file holds all
MOST_DRAWN = 500  # pictures on a sheet
LIKELIEST = 3  # classes on a line


def set_here(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Which of these parameters the command line sets."""
    said = [(name, context.get_parameter_source(name)) for name in names]
    return [name for name, source in said if source is not None and source.name == "COMMANDLINE"]


def refuse_options(context: typer.Context, names: Iterable[str], of: str, remedy: str = "leave them out") -> None:
    """One sentence when an option was given that has no meaning here."""
    from warmstart.core import InputError

    wrong = set_here(context, names)
    if wrong:
        flags = {param.name: param.opts[0] for param in context.command.params}
        raise InputError(f"only options for {of}", ", ".join(flags[name] for name in wrong), remedy)


def fit_pictures(
    voice: Voice,
    pictures: Path,
    output: Path,
    chosen: dict[str, int],
    way: int,
    shot: int,
    method: str | None,
    settings: dict[str, str],
    size: int | None,
    broken: str,
    tensorboard: Path | None,
    seed: int,
    device: str,
) -> None:
    """Fit, judge on unseen classes, save and tell."""
    from warmstart.engine.ranks import join_ranks, wait_for_ranks
    from warmstart.estimators.folder import run_folder
    from warmstart.estimators.picture_learner import PLAN, PictureLearner
    from warmstart.estimators.picture_methods import DEFAULT
    from warmstart.estimators.tensorboard import recorder

    plan = replace(PLAN, **chosen)
    sides = None if size is None else (size, size)
    learner = PictureLearner(way, shot, method or DEFAULT, settings, plan, sides, _broken(broken), seed, device)
    figures = nullcontext(None) if tensorboard is None else recorder(tensorboard)
    with run_folder(output) as folder, figures as record, voice.bars() as bar:
        images, notes = learner.read(pictures)
        for note in notes:
            voice.say(f"Note: {note}")
        learner.fit(images, folder=folder, progress=bar, record=record)
        judged = learner.evaluate(images, progress=bar)
        if join_ranks()[0] == 0:  # under torchrun all ranks hold the same model
            learner.save(output)
        wait_for_ranks()
    _tell_fit(voice, learner, judged, output, notes)


def _broken(choice: str) -> Any:
    from warmstart.core import InputError

    if choice not in ("refuse", "skip"):
        raise InputError("--broken refuse or --broken skip", repr(choice), "pass one of the two")
    return choice


def _tell_fit(voice: Voice, learner: PictureLearner, judged: Judged, output: Path, notes: Sequence[str]) -> None:
    from warmstart.report import Cell, Line, Table

    trained = learner.fitted
    split = {part: len(names) for part, names in trained.split._asdict().items()}
    scores = {trained.name: judged.accuracy, "nearest_centroid": judged.centroid}
    voice.document(
        {
            "model": str(output),
            "method": trained.name,
            "settings": asdict(trained.config),
            "validation": trained.value,
            "shape": list(trained.shape),
            "classes": split,
            "unseen": {"way": judged.way, "shot": judged.shot, "query": judged.query, "tasks": judged.accuracy.n},
            "accuracy": {name: score._asdict() for name, score in scores.items()},
            "difference": judged.difference._asdict(),
            "notes": list(notes),
        }
    )
    if voice.quiet:
        return
    better = max(scores, key=lambda name: scores[name].mean)
    lines = [
        Line(
            name.replace("_", " ") + ("" if name == trained.name else " on pixels"),
            (Cell(f"{score.mean:.1%}", f"{score.high - score.mean:.1%}", name == better),),
            "method" if name == trained.name else "baseline",
        )
        for name, score in scores.items()
    ]
    caption = (
        f"Unseen classes: {judged.accuracy.n} tasks, {judged.way}-way {judged.shot}-shot, each picture judged alone"
    )
    voice.show(Table(("method", "accuracy"), tuple(lines), caption))
    channels, height, width = trained.shape
    voice.show(
        f"Pictures: {height} x {width}, {'colour' if channels == 3 else 'grey'}\n"
        f"Classes:  {', '.join(f'{count} {part}' for part, count in split.items())}\n"
        f"Model:    {output}\n\n"
        f"Next:\n"
        f"  warmstart adapt {shlex.quote(str(output))} --support SUPPORT_DIR --query QUERY_DIR"
    )


def adapt_to_pictures(
    voice: Voice, model: Path, support: Path | None, query: Path, output: Path | None, broken: str
) -> None:
    """Adapt to the class folders of the support, judge every query picture, print and write."""
    from warmstart.core import InputError
    from warmstart.estimators.picture_learner import PictureLearner
    from warmstart.tasks.picture_folder import find_repeats, read_pictures, same_pictures

    if support is None:
        raise InputError("--support, a folder with one sub-folder for each class", "none", "pass it")
    for flag, path in {"--support": support, "--query": query}.items():
        if not path.is_dir():
            got = f"the file {path}" if path.exists() else f"{path}, which is not there"
            raise InputError(f"a folder of pictures for {flag}, since the model is of pictures", got, "pass a folder")
    output = model.with_name(f"{model.name}-predictions") if output is None else output
    learner = PictureLearner.load(model)
    learner.broken = _broken(broken)
    adapted = learner.adapt(support)
    pixels, files, notes = read_pictures(query, learner.fitted.shape, learner.broken)
    _refuse_repeats(find_repeats(adapted.support), adapted)
    both = same_pictures(adapted.support, pixels)
    if both:
        shown, asked = both[0]
        more = f" and {len(both) - 1} more" if len(both) > 1 else ""
        raise InputError(
            "query pictures that the support does not show",
            f"{files[asked]}{more}, the same as one of {_class_of(adapted, shown)}",
            "take it out of one of the two",
        )
    check_writable(output)
    chances = adapted.predict(pixels).tolist()
    told = [f"support: {note}" for note in adapted.notes] + [f"query: {note}" for note in notes]
    _write(output, adapted, pixels, files, chances)
    names = adapted.names
    voice.document(
        {
            "model": str(model),
            "classes": list(names),
            "support": dict(zip(names, adapted.support.lengths.tolist(), strict=True)),
            "predictions": [
                {
                    "picture": file,
                    "prediction": _ranked(names, row)[0][0],
                    "probabilities": dict(zip(names, row, strict=True)),
                }
                for file, row in zip(files, chances, strict=True)
            ],
            "files": [str(output / PREDICTIONS), str(output / SHEET)],
            "notes": told,
        }
    )
    for note in told:
        voice.say(f"Note: {note}")
    for file, row in list(zip(files, chances, strict=True))[:MOST]:
        voice.say(f"{file}  " + "  ".join(f"{name} {chance:.1%}" for name, chance in _ranked(names, row)[:LIKELIEST]))
    if len(files) > MOST:
        voice.say(f"... and {len(files) - MOST} pictures more")
    voice.say(f"Predictions: {output / PREDICTIONS}\nContact sheet: {output / SHEET}")


def _refuse_repeats(repeats: Sequence[tuple[int, int]], adapted: AdaptedPictures) -> None:
    """A picture shown as two classes would make one of the labels wrong."""
    from warmstart.core import InputError

    for first, later in repeats:
        one, other = _class_of(adapted, first), _class_of(adapted, later)
        if one != other:
            raise InputError("each support picture in one class", f"one in {one} and in {other}", "remove one of them")


def _class_of(adapted: AdaptedPictures, row: int) -> str:
    return adapted.names[int((adapted.support.offsets[1:] <= row).sum())]


def _ranked(names: Sequence[str], chances: Sequence[float]) -> list[tuple[str, float]]:
    return sorted(zip(names, chances, strict=True), key=lambda pair: -pair[1])


def _write(
    output: Path, adapted: AdaptedPictures, pixels: Any, files: Sequence[str], chances: list[list[float]]
) -> None:
    """predictions.csv and the contact sheet."""
    import pandas as pd

    from warmstart.estimators.predictions import write_table
    from warmstart.report.contact_sheet import Thumbnail, contact_sheet
    from warmstart.report.page import Section, write_page

    names, support = adapted.names, adapted.support
    best = [_ranked(names, row)[0] for row in chances]
    columns = {f"p({name})": [row[i] for row in chances] for i, name in enumerate(names)}
    write_table(
        pd.DataFrame({"picture": files, "prediction": [name for name, _ in best], **columns}), output / PREDICTIONS
    )
    shown = [
        Thumbnail(picture.numpy(), _class_of(adapted, row), hint=_class_of(adapted, row))
        for row, picture in enumerate(support.pixels[:MOST_DRAWN])
    ]
    judged = [
        Thumbnail(
            picture.numpy(),
            name,
            f"{chance:.1%}",
            f"{file}: " + ", ".join(f"{n} {p:.1%}" for n, p in _ranked(names, row)),
        )
        for picture, file, (name, chance), row in zip(pixels[:MOST_DRAWN], files, best, chances, strict=False)
    ]
    left = f" The first {MOST_DRAWN} are drawn." if len(files) > MOST_DRAWN else ""
    sections = [
        Section("Shown", "The support: a few pictures of each class.", svg=contact_sheet(shown, "Support pictures")),
        Section(
            "Judged",
            f"The likeliest class of each query picture and its probability; point at one for the others.{left}",
            svg=contact_sheet(judged, "Query pictures with their likeliest class"),
        ),
    ]
    how = {"Command": shlex.join(["warmstart", *sys.argv[1:]]), "Method": adapted.trained.name}
    verdict = (
        f"{len(files)} pictures judged among {len(names)} classes, each alone with the {len(support.pixels)} shown."
    )
    write_page(output / SHEET, sections, "Predicted classes", how, verdict)
