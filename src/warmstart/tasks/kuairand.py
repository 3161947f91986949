"""KuaiRand-Pure: impressions of short videos and whether each was clicked, from the publisher's tables.

Read from the folder `KuaiRand-Pure/data` of the publisher (CSV) or from Parquet copies of its tables.
The log of standard recommendations is read, not the one of random exposure. A row that repeats another
in every column is dropped; showing a video to a user again is an event of its own. Gao et al., 2022.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from warmstart.core import InputError
from warmstart.tasks.cells import cell_error, numbers
from warmstart.tasks.data_folder import find_files
from warmstart.tasks.ratings import Ratings, by_name, make_ratings
from warmstart.tasks.roles import require
from warmstart.tasks.table import read_table

SIDES = ("user_features_pure", "video_features_basic_pure")
LOGS = ("log_standard_4_08_to_4_21_pure", "log_standard_4_22_to_5_08_pure")
NUMBERS = ("time_ms", "hourmin", "is_click", "is_rand")
COLUMNS = ("user_id", "video_id", "tab", *NUMBERS)


def read_kuairand(path: str | Path) -> Ratings:
    """Clicks (1) and impressions without one (0); the context is the tab and the hour of the day."""
    copies = ["log_sample.parquet", *(f"{name}.parquet" for name in SIDES)]
    original = [f"{name}.csv" for name in (*LOGS, *SIDES)]
    *logs, users, videos = find_files(path, "kuairand_pure", [copies, original])
    log = pd.concat([_read_log(file) for file in logs], ignore_index=True)
    fresh = ~log.duplicated().to_numpy()
    kept = log[fresh & (log["is_rand"].to_numpy() == 0)]
    if not len(kept):
        raise InputError(f"impressions of the standard log in {logs[0]}", "none", "download it again")
    events = pd.DataFrame(
        {
            "user": kept["user_id"],
            "item": kept["video_id"],
            "value": kept["is_click"],
            "time": kept["time_ms"],
            "tab": kept["tab"].astype("category"),  # a code
            "hour": kept["hourmin"] // 100,
        }
    )
    people = by_name(_coded(read_table(users), "onehot_feat"), "user_id", f"file {users}")
    things = by_name(_coded(read_table(videos), "author_id", "music_", "visible"), "video_id", f"file {videos}")
    if "tag" in things:
        things["tag"] = things["tag"].map(lambda cell: cell.replace(",", "|") if isinstance(cell, str) else cell)
    made = make_ratings(events, people, things, where=f"file {logs[0]}", kind="binary")
    dropped = int((~fresh).sum())
    note = (f"{dropped:,} rows that repeat another in every column were dropped",) if dropped else ()
    return made._replace(notes=made.notes + note)


def _read_log(file: Path) -> pd.DataFrame:
    """With what must be numbers as such; messages name this file and its rows."""
    log, where = read_table(file), f"file {file}"
    require(COLUMNS, log.columns, where)
    log = log.assign(**{name: numbers(log[name], where, "download it again") for name in NUMBERS})
    for name in ("is_click", "is_rand"):
        wrong = ~log[name].isin([0, 1]).to_numpy()
        if wrong.any():
            raise cell_error("0 or 1", log[name], int(wrong.argmax()), where, "download it again")
    return log


def _coded(table: pd.DataFrame, *starts: str) -> pd.DataFrame:
    """Columns whose names start so hold codes, not quantities."""
    return table.astype({name: "category" for name in table.columns if str(name).startswith(starts)})
