"""Tiny-ImageNet in colour from one Parquet file of JPEG bytes: 200 classes, 100 pictures of each.

The file has columns wnid, words, meta_split, idx and jpeg. Its meta_split is a fixed random split of
the classes, 128 to train, 32 for validation, 40 to test: not an official one, so accuracies do not
compare with figures published for miniImageNet or CIFAR-FS.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import torch
from pyarrow import parquet

from warmstart.core import InputError
from warmstart.tasks.data_folder import find_files
from warmstart.tasks.images import Images, make_images
from warmstart.tasks.picture_file import read_picture, to_pixels
from warmstart.tasks.split import Split

FILE = "tiny_imagenet_200x100.parquet"
COLUMNS = {
    "wnid": pa.string(),
    "words": pa.string(),
    "meta_split": pa.string(),
    "idx": pa.int64(),
    "jpeg": pa.binary(),
}
PARTS = ("train", "val", "test")


def read_tiny_imagenet(path: str | Path, size: tuple[int, int] = (64, 64)) -> Images:
    """Classes "wnid first-word" in the order of wnid, pictures in that of idx; grey ones become colour.

    `path` is the Parquet file, its folder or one above `tiny_imagenet/`; `size` is (height, width).
    """
    if min(size) < 1:
        raise InputError("a height and a width of at least 1", f"{size[0]} x {size[1]}", "pass 64 x 64")
    file = _find(path)
    frame = _read(file, ["wnid", "words", "idx", "jpeg"]).sort_values(["wnid", "idx"], kind="stable")
    names = _class_names(frame)
    shape = (3, *size)
    pixels = torch.empty((len(frame), *shape), dtype=torch.uint8)
    for row, (name, idx, jpeg) in enumerate(zip(names, frame["idx"], frame["jpeg"], strict=True)):
        pixels[row] = torch.from_numpy(to_pixels(read_picture(jpeg, f"row {name}, {idx} of {file}").image, shape))
    lengths = names.groupby(names, sort=False).size()
    return make_images(pixels, torch.tensor(lengths.tolist()), tuple(lengths.index))


def split_tiny_imagenet(path: str | Path) -> Split:
    """The class names of the file's own split."""
    file = _find(path)
    frame = _read(file, ["wnid", "words", "meta_split"]).sort_values("wnid", kind="stable")
    pairs = pd.DataFrame({"name": _class_names(frame), "part": frame["meta_split"]}).drop_duplicates()
    if not set(pairs["part"]) <= set(PARTS) or pairs["name"].duplicated().any():
        expected = f"one of {', '.join(PARTS)} for each class in meta_split of {file}"
        raise InputError(expected, "another word or two for one class", "copy the file again")
    return Split(*(tuple(pairs["name"][pairs["part"] == part]) for part in PARTS))


def _find(path: str | Path) -> Path:
    return Path(path) if Path(path).is_file() else find_files(path, "tiny_imagenet", [[FILE]])[0]


def _read(file: Path, columns: list[str]) -> pd.DataFrame:
    try:
        source = parquet.ParquetFile(file)
        missing = [column for column in columns if column not in source.schema_arrow.names]
        if missing:
            got = f"none named {missing[0]}"
            raise InputError(f"columns {', '.join(columns)} in {file}", got, "copy the file again")
        table = source.read(columns=columns)
        table = pa.table({name: table.column(name).cast(COLUMNS[name]) for name in columns})
        frame: pd.DataFrame = table.to_pandas()
    except InputError:
        raise
    except Exception as error:  # a damaged file raises whatever its decoder happens to
        got = f"a truncated or damaged one ({' '.join(str(error).split())[:120]})"
        raise InputError(f"a Parquet file in {file}", got, "copy the file again") from error
    if not len(frame) or frame.isna().to_numpy().any():
        raise InputError(f"rows without gaps in {file}", "gaps" if len(frame) else "no row", "copy the file again")
    return frame


def _class_names(frame: pd.DataFrame) -> pd.Series[str]:
    return frame["wnid"] + " " + frame["words"].str.partition(",")[0]
