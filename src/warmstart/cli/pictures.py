"""What `fit`, `adapt`, `evaluate` and `export` do with pictures."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from warmstart.cli.output import Voice
from warmstart.cli.trials import table_of_trials, trials_document
from warmstart.cli.writing import check_writable, tell

if TYPE_CHECKING:
    from warmstart.estimators.picture_comparison import Found
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
        flags = {param.name: "/".join((param.opts[0], *param.secondary_opts)) for param in context.command.params}
        raise InputError(f"only options for {of}", ", ".join(flags[name] for name in wrong), remedy)


def fit_pictures(
    voice: Voice,
    pictures: Path,
    output: Path,
    learner: PictureLearner,
    tensorboard: Path | None,
) -> None:
    """Fit, judge on unseen classes, save and tell."""
    from warmstart.engine.ranks import join_ranks, wait_for_ranks
    from warmstart.estimators.folder import run_folder
    from warmstart.estimators.picture_comparison import judge
    from warmstart.estimators.picture_learner import KIND
    from warmstart.estimators.tensorboard import recorder

    figures = nullcontext(None) if tensorboard is None else recorder(tensorboard)
    with run_folder(output, KIND) as folder, figures as record, voice.bars() as bar:
        images, notes = learner.read(pictures)
        for note in notes:
            voice.say(f"Note: {note}")
        learner.fit(images, folder=folder, progress=bar, record=record)
        found = judge(learner, images, progress=bar)
        if join_ranks()[0] == 0:  # under torchrun all ranks hold the same model
            learner.save(output)
        wait_for_ranks()
    _tell_fit(voice, learner, found, output, pictures, notes)


def picture_learner(
    chosen: dict[str, int],
    way: int,
    shot: int,
    method: str,
    settings: dict[str, str],
    size: int | None,
    rotations: bool,
    warp: bool,
    broken: str,
    seed: int,
    device: str,
) -> PictureLearner:
    """From the options of `fit`; those of tables that pictures have too keep other defaults unless `chosen`."""
    from warmstart.estimators.picture_learner import PLAN, PictureLearner

    trials = chosen.pop("trials", PictureLearner.trials)
    sides = None if size is None else (size, size)
    plan = replace(PLAN, **chosen)
    return PictureLearner(
        way, shot, method, settings, plan, trials, rotations, warp, sides, checked_broken(broken), seed, device
    )


def checked_broken(choice: str) -> Any:
    from warmstart.core import InputError

    if choice not in ("refuse", "skip"):
        raise InputError("--broken refuse or --broken skip", repr(choice), "pass one of the two")
    return choice


def _tell_fit(
    voice: Voice, learner: PictureLearner, found: Found, output: Path, pictures: Path, notes: Sequence[str]
) -> None:
    from warmstart.estimators.picture_comparison import main_table, rows_of
    from warmstart.estimators.picture_methods import find
    from warmstart.report import make_results

    trained = learner.fitted
    split = {part: len(names) for part, names in trained.split._asdict().items()}
    results = make_results("fit", "full", learner.device, "", rows_of(found, learner.seed))
    scores: dict[str, Any] = {}
    for row in results.rows:
        scores.setdefault(row.metric, {})[row.method] = {**row.interval._asdict(), "n": row.n}
    unseen = {"way": found.way, "shot": found.shot, "query": learner.plan.query, "tasks": len(found.query.y)}
    voice.document(
        {
            "model": str(output),
            "method": trained.name,
            "settings": asdict(trained.config),
            "validation": trained.value,
            "shape": list(trained.shape),
            "classes": split,
            "rotations": trained.rotations,
            "warp": trained.warp,
            "unseen": unseen,
            **scores,
            "trials": trials_document(learner.trials_),
            "notes": list(notes),
        }
    )
    if voice.quiet:
        return
    if sum(map(len, learner.trials_.values())) > 1:
        spaces = {name: find(name, trained.design).space for name in learner.trials_}
        voice.show(table_of_trials(learner.trials_, spaces, "log loss"))
    voice.show(main_table(found, results))
    channels, height, width = trained.shape
    judge = shlex.join(["warmstart", "evaluate", str(output), str(pictures), "-o", f"{output}-report"])
    voice.show(
        f"Method:   {trained.name}\n"
        f"Pictures: {height} x {width}, {'colour' if channels == 3 else 'grey'}\n"
        f"Classes:  {', '.join(f'{count} {part}' for part, count in split.items())}\n"
        f"Model:    {output}\n\n"
        f"Next:\n"
        f"  {judge}\n"
        f"  warmstart adapt {shlex.quote(str(output))} --support SUPPORT_DIR --query QUERY_DIR"
    )


def evaluate_pictures(
    voice: Voice, model: Path, pictures: Path, output: Path | None, trials: int, broken: str, device: str
) -> None:
    """The page of a model of pictures."""
    from warmstart.estimators.picture_evaluation import evaluate
    from warmstart.estimators.picture_learner import PictureLearner

    learner = PictureLearner.load(model)
    learner.broken, learner.device = checked_broken(broken), device
    with voice.bars() as bar:
        outcome = evaluate(learner, pictures, trials=trials, progress=bar)
    voice.document(tell(voice, outcome, f"{model.name} on unseen classes of {pictures.name}", output))


def export_pictures(voice: Voice, model: Path, support: Path | None, output: Path, broken: str) -> None:
    """An ONNX file of the classifier of the support's classes."""
    adapted = _adapted(model, _folder("--support", support), broken, "cpu")
    adapted.export(output)
    shown = dict(zip(adapted.names, adapted.support.lengths.tolist(), strict=True))
    notes = [f"support: {note}" for note in adapted.notes]
    voice.document({"file": str(output), "method": adapted.trained.name, "support": shown, "notes": notes})
    for note in notes:
        voice.say(f"Note: {note}")
    voice.say(f"ONNX file: {output}\nClasses:   {', '.join(adapted.names)}")


def _adapted(model: Path, support: Path, broken: str, device: str) -> AdaptedPictures:
    """The model adapted to a folder of class folders."""
    from warmstart.estimators.picture_learner import PictureLearner

    learner = PictureLearner.load(model)
    learner.broken = checked_broken(broken)
    return learner.adapt(support, device)


def _folder(flag: str, path: Path | None) -> Path:
    """The folder that an option must name."""
    from warmstart.core import InputError

    if path is None:
        raise InputError(f"{flag}, a folder with one sub-folder for each class", "none", "pass it")
    if not path.is_dir():
        got = f"the file {path}" if path.exists() else f"{path}, which is not there"
        raise InputError(f"a folder of pictures for {flag}, since the model is of pictures", got, "pass a folder")
    return path


def adapt_to_pictures(
    voice: Voice, model: Path, support: Path | None, query: Path, output: Path | None, broken: str, device: str
) -> None:
    """Adapt to the class folders of the support, judge every query picture, print and write."""
    from warmstart.core import InputError
    from warmstart.tasks.picture_folder import read_pictures, same_pictures

    shown, query = _folder("--support", support), query if query.is_file() else _folder("--query", query)
    output = model.with_name(f"{model.name}-predictions") if output is None else output
    check_writable(output, SHEET)
    adapted = _adapted(model, shown, broken, device)
    pixels, files, notes = read_pictures(query, adapted.trained.shape, checked_broken(broken))
    both = same_pictures(adapted.support, pixels)
    if both:
        first, asked = both[0]
        more = f" and {len(both) - 1} more" if len(both) > 1 else ""
        raise InputError(
            "query pictures that the support does not show",
            f"{files[asked]}{more}, the same as one of {adapted.support.class_of(first)}",
            "take it out of one of the two",
        )
    chances = adapted.predict(pixels).tolist()
    told = [f"support: {note}" for note in adapted.notes] + [f"query: {note}" for note in notes]
    _write(output, adapted, pixels, files, chances, told)
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


def _ranked(names: Sequence[str], chances: Sequence[float]) -> list[tuple[str, float]]:
    return sorted(zip(names, chances, strict=True), key=lambda pair: -pair[1])


def _write(
    output: Path,
    adapted: AdaptedPictures,
    pixels: Any,
    files: Sequence[str],
    chances: list[list[float]],
    notes: Sequence[str],
) -> None:
    """The contact sheet, by which a later run knows the folder, and predictions.csv."""
    import pandas as pd

    from warmstart.estimators.predictions import write_table
    from warmstart.report import called
    from warmstart.report.contact_sheet import Thumbnail, contact_sheet
    from warmstart.report.page import Section, write_page

    names, support = adapted.names, adapted.support
    best = [_ranked(names, row)[0] for row in chances]
    columns = {f"p({name})": [row[i] for row in chances] for i, name in enumerate(names)}
    shown = [
        Thumbnail(picture.numpy(), support.class_of(row), hint=support.class_of(row))
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
    how = {"Command": called(), "Method": adapted.trained.name, **({"Notes": "; ".join(notes)} if notes else {})}
    verdict = (
        f"{len(files)} pictures judged among {len(names)} classes, each alone with the {len(support.pixels)} shown."
    )
    write_page(output / SHEET, sections, "Predicted classes", how, verdict)
    write_table(
        pd.DataFrame({"picture": files, "prediction": [name for name, _ in best], **columns}), output / PREDICTIONS
    )
