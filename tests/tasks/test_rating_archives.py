"""Loaders of ratings and clicks, on tiny archives in the publishers' form, and on the real ones where present."""

import zipfile

import numpy as np
import pandas as pd
import pytest

from warmstart.core import InputError
from warmstart.tasks.book_crossing import FILES, read_book_crossing
from warmstart.tasks.kuairand import LOGS, SIDES, read_kuairand
from warmstart.tasks.movielens import GENRES, read_movielens_1m, read_movielens_100k

ONE_M = {
    "ml-1m/ratings.dat": "1::10::5::978300760\n1::20::3::978300700\n2::10::1::5\n",
    "ml-1m/users.dat": "1::F::1::10::48067\n2::M::56::16::70072\n",
    "ml-1m/movies.dat": "10::Café Society (1995)::Comedy|Drama\n20::M (1931)::Drama\n30::Nobody's (2000)::War\n",
}
EXTRA = {"ml-1m/movies_extrainfos.dat": "10::Café::1995::PG::d::Comedy::Ann Lee, Bo Ek::w::X Y, Z::plot::p\n"}
OF_100K = {
    "ml-100k/u.data": "7\t1\t4\t20\n9\t1\t2\t10\n",
    "ml-100k/u.user": "7|24|M|technician|85711\n9|53|F|other|T8H1N\n",
    "ml-100k/u.item": "1|Toy Story (1995)|01-Jan-1995||http|" + "|".join("01"[g in (4, 5)] for g in range(19)) + "\n",
}
BOOKS = {
    "BX-Users.csv": [
        '"1";"nyc, new york, usa";NULL',
        '"2";"århus, \\"n/a\\", denmark";"18"',
        '"3";"a\nplace, x, y";"244"',
        '"4";"unread, x, y";"5"',
    ],
    "BX-Books.csv": [
        '"0001";"The ""O"" \\"Word\\"; a life";"A; B &amp; C";"2001";"Pub";"u";"u";"u"',
        '"0002";"Creating the X-Men\\";Michael Teitelbaum";"2000";"DK";"u";"u";"u"',
        '"0003";"Later";"D";"2050";"Pub";"u";"u";"u"',
    ],
    "BX-Book-Ratings.csv": ['"1";"0001";"7"', '"2";"0002";"0"', '"2";"0001";"10"', '"3";"0002";"1"', '"3";"9999";"2"'],
}


def write(path, members, encoding="latin-1"):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text.encode(encoding))
    return path.parent


def write_books(folder, **changes):
    lines = BOOKS | changes
    members = {
        name: "\r\n".join([";".join(f'"{column}"' for column in FILES[name]), *rows, ""])
        for name, rows in lines.items()
    }
    return write(folder / "BX-CSV-Dump.zip", members)


def refused(call, *parts):
    with pytest.raises(InputError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def rows(found):
    users, items = found.users.index[found.user], found.items.index[found.item]
    return list(zip(users, items, found.value.tolist(), strict=True))


def test_movielens_1m(tmp_path):
    folder = write(tmp_path / "ml-1m.zip", ONE_M)
    found = read_movielens_1m(folder)
    assert rows(found) == [("1", "20", 3), ("1", "10", 5), ("2", "10", 1)]
    assert found.users.loc["1"].tolist() == ["F", "1", "10", "48067"]
    assert found.items.loc["10"].tolist() == ["Café Society (1995)", "Comedy|Drama", 1995]
    assert found.items["year"].tolist() == [1995, 1931, 2000] and found.scale == (1, 5)
    write(tmp_path / "ml-1m_melu_extra.zip", EXTRA, "utf-8")
    more = read_movielens_1m(folder).items
    assert more.loc["10", ["director", "actors", "rate"]].tolist() == ["Ann Lee|Bo Ek", "X Y|Z", "PG"]
    assert more.loc["20", ["director", "actors", "rate"]].isna().all()
    assert "director" not in read_movielens_1m(folder, extra=False).items
    with zipfile.ZipFile(tmp_path / "ml-1m.zip") as archive:
        archive.extractall(tmp_path / "unzipped")
    for place in (tmp_path / "unzipped", tmp_path / "unzipped" / "ml-1m", tmp_path / "ml-1m.zip"):
        assert rows(read_movielens_1m(place)) == rows(found)


def test_movielens_100k(tmp_path):
    found = read_movielens_100k(write(tmp_path / "ml-100k.zip", OF_100K))
    assert rows(found) == [("7", "1", 4), ("9", "1", 2)] and found.time.tolist() == [20, 10]
    assert found.items.loc["1"].tolist() == ["Toy Story (1995)", 1995, f"{GENRES[4]}|{GENRES[5]}"]
    assert found.users.loc["9"].tolist() == [53, "F", "other", "T8H1N"]


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("ratings.dat", "1::10::5::1\n1::20::3\n", ["4 columns", "ratings.dat of", "3 in line 2", "column value"]),
        ("ratings.dat", "1::10::5::1\n1::20::3::4::5\n", ["5 in line 2", "more follows column time"]),
        ("ratings.dat", "1::10::5::1\n\n1::20::3::4\n", ["in line 2"]),
        ("ratings.dat", "1::10::5::1\n1::20::x::4\n", ["a whole number", "ratings.dat", "'x' in line 2, column value"]),
        ("ratings.dat", "1::10::5::1\n1::20::6::4\n", ["on the scale 1 to 5", "ratings.dat", "6 in row 2"]),
        ("ratings.dat", "", ["lines in file ratings.dat", "empty"]),
        ("users.dat", "1::F::1::10::1\n1::F::1::10::1\n", ["each name once", "users.dat", "1 in row 2"]),
        ("users.dat", "1::F::1::10::1\n2::F::::10::1\n", ["a whole number", "users.dat", "None in line 2, column age"]),
        ("users.dat", "1::F::x5::10::1\n", ["a whole number", "users.dat", "'x5' in line 1, column age"]),
        ("users.dat", "1::F::1::1O::1\n", ["a whole number", "users.dat", "'1O' in line 1, column occupation"]),
    ],
)
def test_a_broken_line_is_said_with_its_place(tmp_path, name, text, parts):
    folder = write(tmp_path / "ml-1m.zip", ONE_M | {f"ml-1m/{name}": text})
    refused(lambda: read_movielens_1m(folder), *parts)


def test_side_files_may_miss_ids(tmp_path):
    folder = write(tmp_path / "ml-1m.zip", ONE_M | {"ml-1m/users.dat": "1::F::1::10::48067\n"})
    found = read_movielens_1m(folder)
    assert any("1 of 2 users" in note for note in found.notes) and found.users.loc["2"].isna().all()


def test_truncated_and_missing_archives(tmp_path):
    refused(lambda: read_movielens_1m(tmp_path), "ml-1m.zip, or ml-1m", "WARMSTART_DATA")
    file = write(tmp_path / "ml-1m.zip", ONE_M) / "ml-1m.zip"
    content = file.read_bytes()
    for part in (content[: len(content) // 2], b"", content[:60] + b"xxxx" + content[64:]):
        file.write_bytes(part)
        refused(lambda: read_movielens_1m(tmp_path), "a whole archive", "truncated or damaged", "download it again")
    write(file, {"ml-1m/users.dat": ONE_M["ml-1m/users.dat"]})
    refused(lambda: read_movielens_1m(tmp_path), "a file ratings.dat in", "none")


def test_book_crossing_reads_its_own_dialect(tmp_path):
    found = read_book_crossing(write_books(tmp_path))
    assert rows(found) == [("1", "0001", 7), ("2", "0001", 10), ("3", "0002", 1), ("3", "9999", 2)]
    assert found.items.loc["0001", ["title", "author"]].tolist() == ['The ""O"" "Word"; a life', "A; B & C"]
    assert found.items.loc["0002"].tolist() == ["Creating the X-Men", "Michael Teitelbaum", 2000, "DK"]
    assert np.isnan(found.items.loc["0003", "year"]) and found.items.loc["9999"].isna().all()
    assert found.users["age"].isna().tolist() == [True, False, True]
    assert found.users.loc["2", ["city", "country"]].tolist() == ["århus", "denmark"]
    assert found.users["state"].isna().tolist() == [False, True, False] and found.users.loc["3", "city"] == "a place"
    said = " / ".join(found.notes)
    assert "1 ratings of zero" in said and "1 of 3 items" in said


def test_book_crossing_says_what_it_cannot_repair(tmp_path):
    short = write_books(tmp_path, **{"BX-Users.csv": ['"1";"nyc, new york, usa";NULL', '"2"']})
    refused(lambda: read_book_crossing(short), "3 cells", "BX-Users.csv", "1 in line 3", "column User-ID")
    worded = write_books(tmp_path, **{"BX-Book-Ratings.csv": ['"1";"0001";"7"', '"1";"0002";"x"']})
    refused(lambda: read_book_crossing(worded), "a whole number", "'x' in line 3, column Book-Rating")
    high = write_books(tmp_path, **{"BX-Book-Ratings.csv": ['"1";"0001";"0"', '"1";"0002";"11"']})
    refused(lambda: read_book_crossing(high), "on the scale 1 to 10", "11 in row 3")
    cut = write_books(tmp_path, **{"BX-Book-Ratings.csv": []})
    refused(lambda: read_book_crossing(cut), "ratings in BX-Book-Ratings.csv", "none")
    empty = write(tmp_path / "BX-CSV-Dump.zip", dict.fromkeys(FILES, ""))
    refused(lambda: read_book_crossing(empty), "the header User-ID;Location;Age", "an empty file")


def test_kuairand_reads_tables(tmp_path):
    log = pd.DataFrame(
        {"user_id": [1, 1, 1, 2], "video_id": [5, 5, 5, 6], "time_ms": [20, 10, 10, 3], "hourmin": [1800, 900, 900, 0]}
    ).assign(tab=[0, 1, 1, 2], is_click=[1, 0, 0, 1], is_rand=[0, 0, 0, 0])
    folder = tmp_path / "kuairand_pure"
    folder.mkdir()
    log.to_parquet(folder / "log_sample.parquet")
    people = pd.DataFrame({"user_id": [1, 2, 3], "days": [1, 2, 3], "onehot_feat0": [7, 8, 7]})
    people.to_parquet(folder / "user_features_pure.parquet")
    pd.DataFrame({"video_id": [5, 6], "tag": ["1,2", "3"]}).to_parquet(folder / "video_features_basic_pure.parquet")
    found = read_kuairand(tmp_path)
    assert rows(found) == [("1", "5", 0), ("1", "5", 1), ("2", "6", 1)]  # one exact repeat gone, one video twice
    assert found.context.to_numpy().tolist() == [[1, 9], [0, 18], [2, 0]]
    assert found.users["days"].tolist() == [1, 2] and any("1 rows that repeat" in note for note in found.notes)
    assert found.users["onehot_feat0"].dtype == "category" and found.items["tag"].tolist() == ["1|2", "3"]
    log.drop(columns="tab").to_parquet(folder / "log_sample.parquet")
    refused(lambda: read_kuairand(tmp_path), "column 'tab'", "log_sample.parquet")
    log.assign(is_rand=1).to_parquet(folder / "log_sample.parquet")
    refused(lambda: read_kuairand(tmp_path), "standard log", "none")


def test_kuairand_says_in_which_of_its_logs_a_cell_is_wrong(tmp_path):
    log = pd.DataFrame({"user_id": range(9), "video_id": 5, "time_ms": 20, "hourmin": 1800, "tab": 0, "is_click": 1})
    log["is_rand"] = 0
    first, second = (tmp_path / f"{name}.csv" for name in LOGS)
    pd.DataFrame({"user_id": range(9)}).to_csv(tmp_path / f"{SIDES[0]}.csv", index=False)
    pd.DataFrame({"video_id": [5], "tag": [7]}).to_csv(tmp_path / f"{SIDES[1]}.csv", index=False)
    for name, cell, words in (
        ("is_rand", "x", "a number in column 'is_rand'"),
        ("hourmin", "x", "a number in column 'hourmin'"),
        ("is_click", 2, "0 or 1 in column 'is_click'"),
    ):
        log.to_csv(first, index=False)
        log.assign(**{name: [*log[name][:6], cell, *log[name][7:]]}).to_csv(second, index=False)
        refused(lambda: read_kuairand(tmp_path), words, second.name, "in row 7")
    log.assign(time_ms=21).to_csv(second, index=False)
    assert len(read_kuairand(tmp_path).value) == 18


def test_the_real_archives(shared_data):
    if not (shared_data / "ml-1m.zip").exists():
        pytest.skip("no ml-1m.zip there")
    movies = read_movielens_1m(shared_data)
    assert (len(movies.value), len(movies.users), len(movies.items)) == (1_000_209, 6_040, 3_883)
    assert np.bincount(movies.value.astype(int))[1:].tolist() == [56_174, 107_557, 261_197, 348_971, 226_310]
    assert movies.items["director"].notna().sum() > 3_700
    few = read_movielens_100k(shared_data)
    assert (len(few.value), len(few.users), len(few.items)) == (100_000, 943, 1_682)
    clicks = read_kuairand(shared_data)
    assert (len(clicks.value), len(clicks.users)) == (228_329 - 5_460, 25_156)


def test_the_real_books(shared_data):
    if not (shared_data / "BX-CSV-Dump-subset.zip").exists():
        pytest.skip("no BookCrossing there")
    books = read_book_crossing(shared_data)
    assert (len(books.value), len(books.users), len(books.items)) == (230_936, 51_759, 27_109)
    assert (np.bincount(books.user) >= 10).sum() == 4_285
