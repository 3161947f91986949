"""Committed results (results/*.json) to the Markdown tables that the pages include."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from warmstart import studies
from warmstart.cli.modules import runnable
from warmstart.report import Results, Row, Table, load, markdown, plain, table
from warmstart.report.tables import NOT_RUN
from warmstart.studies import cost, inner_steps, omniglot, tiny_imagenet

PAGES = {
    "scratch": ["scratch"],
    "pretrain": ["pretrain"],
    "maml": [
        *("maml", "fomaml", "anil", "maml, blank head", "fomaml, blank head", "maml, paper"),
        *("maml, warped", "fomaml, warped", "maml, mirrored", "fomaml, mirrored"),
    ],
    "reptile": ["reptile", "reptile, paper"],
    "imaml": [
        *("imaml", "imaml, plain gradient", "imaml_head", "imaml_head, warped"),
        *("imaml, mirrored", "imaml, plain gradient, mirrored", "imaml_head, mirrored"),
        *("imaml, plain gradient, fresh", "imaml, first order"),
    ],
    "meta_sgd": ["meta_sgd"],
    "bmaml": ["bmaml"],
    "empirical_bayes": ["empirical_bayes"],
    "gem": ["gem_bml", "gem_bml_plus", "gem_bml_plus, sgd", "gem_bml_plus, paper", "gem_bml_plus, mirrored"],
    "gem_head": ["gem_head", "gem_head, warped"],
    "gem_mixture": ["gem_mixture"],
    "llama": ["llama"],
    "abml": ["abml"],
    "pmaml": ["pmaml", "platipus"],
    "kl_chaser": ["kl_chaser"],
    "melu": ["melu", "melu, content only", "melu, paper's settings"],
    "paml": ["paml", "paml, content only", "paml, paper's settings"],
    "at_paml": ["at_paml", "at_paml, content only", "at_paml, paper's settings", "at_paml, outer rate 5e-4"],
    "reg_paml": [
        "reg_paml",
        "reg_paml, content only",
        "reg_paml, paper's settings",
        *(f"reg_paml, gamma {gamma:g}" for gamma in (1e-5, 1e-4, 1e-3, 1e-2)),
    ],
    "nearest_centroid": ["nearest_centroid"],
    "linear_head": ["linear_head"],
    "protonet": ["protonet", "protonet, warped", "protonet, mirrored"],
    "click_bayes": ["click_bayes", "click_bayes, level alone"],
    "preference_bayes": [
        "preference_bayes",
        "preference_bayes, ratings alone",
        "preference_bayes, without choices",
    ],
    "task_model": [
        "task_model",
        "task_model, linearised",
        "task_model, boosted trees",
        "task_model, network and trees",
        "random order",
        "all sources",
        "all sources, network and trees",
        "boosted trees, pooled",
        "validation labels only",
        "top by vote accuracy",
        "votes as features",
        "votes as features, self-trained",
        "chosen by validation",
        "stacked",
        "in all",
    ],
    "model_fusion": [
        "auto",
        "function_gp",
        "hypernetwork",
        "weight_gp",
        "weight_gp, unaligned",
        "weight_ridge",
        "aligned_average",
        "average",
        "nearest",
        "the networks themselves",
        "auto, plain fine-tuning",
        "cold start",
        "item + context bias",
        "mean of the item",
        "cold CF",
        "oracle CF",
        *(f"{name}{more}" for name in ("AutoRec", "NeuMF", "DeepFM") for more in ("", ", context alone")),
        "maml [1-100-1]",
        "maml [1-40-40-1]",
        "per_fedavg [1-100-1]",
    ],
    "meta_model": [
        "meta_model",
        "meta_model, unaligned",
        "meta_model, latent order",
        "meta_model, refit",
        *(f"meta_model{kind}, plain fine-tuning" for kind in ("", ", unaligned", ", refit")),
        "meta_model, fine-tuning by H",
    ],
    "own_pictures": ["nearest_centroid", "linear_head", "protonet", "gem_head", "imaml_head"],
    "adapters": [
        "auto",
        "adapter_functions",
        "adapter_gp",
        "average",
        "nearest",
        "frozen network",
        "own adapter, 10 rows",
        "own adapter, 500 rows",
    ],
}
FUSION = ["fusion_sine", "fusion_ratings", "fusion_cost"]
SELECT = ["select_harm", "select_census", "select_affinity", "select_convergence", "select_weak", "select_theory"]
STUDIES_OF = {  # of pages whose methods have namesakes in other studies; the other pages take all
    "task_model": [*SELECT, "source_count", "subset_training"],
    "model_fusion": FUSION,
    "meta_model": FUSION,
    "adapters": ["fusion_adapters"],
    "own_pictures": ["own_pictures"],
}
EXPECTED = {  # rows, run or not
    "omniglot": omniglot.ALL,
    "tiny_imagenet": tiny_imagenet.ALL,
    "cost": cost.ENTRIES,
    "inner_steps": inner_steps.ENTRIES,
}
PEERS = {"cold_ratings": ["bias", "stack of baselines", "preference_bayes"]}  # beside the methods of any page
PAPER = "paper "
TRIAL = "trial"  # the setting that tells a trial of a search from a score
NO_RESULTS = "No results have been committed yet.\n"


def section(results: Results, methods: Sequence[str] | None = None) -> str:
    """The tables of one result file, one per metric; all of its methods unless told which.

    Without `methods`, and in studies of EXPECTED, every setting is a column, so that what was not run shows. Elsewhere
    a page has no line or column that none of its methods ran. Of tuning, the settings that were chosen are shown.
    """
    blocks = [f"**{results.study}, {results.preset}**"]
    expected = EXPECTED.get(results.study)
    own = None if expected else methods
    if methods is None:
        methods = list(dict.fromkeys([*expected, *(row.method for row in results.rows)])) if expected else None
    else:
        known = expected or methods
        methods = list(dict.fromkeys([*(name for name in methods if name in known), *PEERS.get(results.study, [])]))
    scored = [row for row in results.rows if TRIAL not in row.setting]
    for metric, unit in dict.fromkeys((row.metric, row.unit) for row in scored):
        rows = tuple(row for row in scored if row.metric == metric)
        if own is not None and not any(row.method in own for row in rows):
            continue
        heading = f"{metric} ({unit})" if unit else metric
        content = table(replace(results, rows=rows), methods)
        blocks.append(f"{heading}:\n\n{markdown(content if own is None else ran(content, own))}")
        blocks += published(rows, methods, own)
    if len(scored) < len(results.rows):
        blocks.append(chosen(results, methods))
    commands = ", ".join(f"`{line}`" for line in results.command.splitlines())
    devices = ", ".join(results.device.splitlines())
    versions = ", ".join(f"{name} {' and '.join(version.splitlines())}" for name, version in results.versions.items())
    return "\n\n".join([*blocks, f"{commands} on {devices}, {results.date}; {versions}."]) + "\n"


def ran(content: Table, own: Sequence[str]) -> Table:
    """Without the lines that have no result, and without the columns in which no method of `own` has one."""
    lines = [line for line in content.lines if any(cell.text != NOT_RUN for cell in line.cells)]
    mine = [line.cells for line in lines if line.label in own]
    kept = [i for i, column in enumerate(zip(*mine, strict=True)) if any(cell.text != NOT_RUN for cell in column)]
    head = (content.head[0], *(content.head[1 + i] for i in kept))
    cut = tuple(line._replace(cells=tuple(line.cells[i] for i in kept)) for line in lines)
    return content._replace(head=head, lines=cut)


def published(rows: Sequence[Row], methods: Sequence[str] | None, own: Sequence[str] | None) -> list[str]:
    """What papers report for the rows of a metric, in settings that a method of `own` has."""
    settings = [row.setting for row in rows if own is None or row.method in own]
    shown = [row for row in rows if row.peer.startswith(PAPER) and (methods is None or row.method in methods)]
    shown = [row for row in shown if row.setting in settings]
    keys = list(dict.fromkeys(key for row in shown for key in row.setting))
    differ = [key for key in keys if len({row.setting.get(key) for row in rows}) > 1]
    told = [
        f"{row.method}{''.join(f', {key} {row.setting[key]}' for key in differ if key in row.setting)}: "
        f"{row.peer.removeprefix(PAPER)}"
        for row in shown
    ]
    return [f"Published: {'; '.join(told)}."] if told else []


def chosen(results: Results, methods: Sequence[str] | None = None) -> str:
    """The trial of each method and family whose settings were kept, with how many there were."""
    trials = [row for row in results.rows if TRIAL in row.setting and (methods is None or row.method in methods)]
    count = Counter((row.method, row.setting["family"]) for row in trials)
    lines = [
        [
            row.method,
            *(str(row.setting[key]) for key in ("family", "settings")),
            f"{row.mean:.3g}" if row.mean == row.mean else "not tuned",
            str(count[row.method, row.setting["family"]]),
        ]
        for row in trials
        if row.setting["kept"]
    ]
    if not lines:
        return "No trials of these methods."
    return "Settings, chosen on validation tasks:\n\n" + markdown(
        plain(["method", "family", "settings", trials[0].metric, "trials"], lines)
    )


def page(found: Sequence[Results], methods: Sequence[str] | None = None) -> str:
    """What a page includes: every study that ran one of the methods, or that no study did."""
    about = [r for r in found if methods is None or any(row.method in methods for row in r.rows)]
    return "\n".join(section(results, methods) for results in about) or NO_RESULTS


def write(results: Path, target: Path) -> None:
    """One file per method page, and `all.md` with everything."""
    found = [load(path) for path in sorted(results.glob("*.json"))]
    target.mkdir(parents=True, exist_ok=True)
    for name, methods in PAGES.items():
        about = [result for result in found if result.study in STUDIES_OF.get(name, [result.study])]
        (target / f"{name}.md").write_text(page(about, methods), encoding="utf-8")
    done = {result.study for result in found if result.preset == "full"}
    left = ", ".join(f"`{name}`" for name in runnable(studies) if name not in done)
    told = f"Studies without a committed run at full size: {left}.\n\n" if left else ""
    (target / "all.md").write_text(told + page(found), encoding="utf-8")
