"""Texts as numbers by a pre-trained language model, instead of or beside TF-IDF (extra `text`, sentence-transformers).

    x = [unit vector of the text, unit vector of its relation, 1]

A model is a folder, or a name under which it was downloaded before; nothing is downloaded unless that is asked for.
Only weights in safetensors are read, and no code that comes with a model is run. Reimers and Gurevych, 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from warmstart.core import InputError
from warmstart.tasks.texts import Written


def embed(
    parts: Sequence[Written],
    model: str | Path,
    *,
    download: bool = False,
    device: str = "cpu",
    batch: int = 32,
) -> list[Tensor]:
    """[n, d] for each part, as `texts.embed` has them: the last column is 1. Nothing is learned."""
    network = load(model, download, device)
    if sum(bool(part.relations) for part in parts) not in (0, len(parts)):
        raise InputError("relations in all parts", "in some", "pass them everywhere or nowhere")

    def vectors(texts: Sequence[str]) -> Tensor:
        found = network.encode(
            list(texts), batch_size=batch, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return torch.from_numpy(found).float()

    whole = []
    for part in parts:
        blocks = [vectors(texts) for texts in (part.texts, part.relations) if texts]
        whole.append(torch.cat([*blocks, torch.ones(len(part.texts), 1)], 1))
    return whole


def load(model: str | Path, download: bool = False, device: str = "cpu") -> Any:
    """The model as sentence-transformers has it."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        remedy = "pip install 'warmstart[text]'"
        raise InputError("sentence-transformers for sentence embeddings", "none installed", remedy) from None
    folder = Path(model)
    if not str(model).strip() or (isinstance(model, Path) and not folder.is_dir()):
        raise InputError(f"a folder '{model}' with a model", "none there", "check the path")
    try:
        return SentenceTransformer(
            str(model), device=device, local_files_only=not download, model_kwargs={"use_safetensors": True}
        )
    except Exception as error:  # a damaged model may raise anything
        found = " ".join(str(error).split())[:150] or type(error).__name__
        if folder.is_dir():
            remedy = "save it with SentenceTransformer.save, weights in safetensors"
            raise InputError(f"a model of sentence-transformers in folder {folder}", found, remedy) from None
        if download:
            raise InputError(f"a folder or a model '{model}' to download", found, "check the name") from None
        remedy = "name a folder; from Python, download=True fetches it"
        raise InputError(f"a folder or a model '{model}' downloaded before", "neither", remedy) from None
