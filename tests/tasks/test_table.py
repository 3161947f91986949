"""read_table: what it returns, and that everything wrong is an InputError that names the place."""

import re
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from warmstart.core import InputError
from warmstart.tasks.table import read_table


def write(folder, content, name="t.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(source, *parts, **options):
    """The sentence has every part."""
    with pytest.raises(InputError) as caught:
        read_table(source, **options)
    for part in parts:
        assert re.search(part, str(caught.value)), (part, str(caught.value))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
def test_every_format_gives_the_same_table(tmp_path, suffix):
    frame = pd.DataFrame({"id": ["007", "12"], "n": [3, 4], "x": [0.5, np.nan], "s": ["a|b", None], "e": ["é,\t", "f"]})
    path = tmp_path / f"t.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    for back in (read_table(path), read_table(frame)):
        pd.testing.assert_frame_equal(back, frame, check_dtype=False)
        assert back["n"].dtype == np.int64 and back["x"].dtype == np.float64


def test_identifiers_stay_text_and_numbers_become_numbers(tmp_path):
    path = write(tmp_path, "zero,long,hex,spaced,signed,gap\n01,1234567890123456789,0x1F, 5,-2,\n10,2,7, 6,3e2,4\n")
    frame = read_table(path)
    assert frame["zero"].tolist() == ["01", "10"]
    assert frame["long"].tolist() == ["1234567890123456789", "2"]
    assert frame["hex"].tolist() == ["0x1F", "7"]
    assert frame["spaced"].tolist() == [5, 6] and frame["signed"].tolist() == [-2.0, 300.0]
    assert np.isnan(frame["gap"][0]) and frame["gap"][1] == 4


def test_byte_order_mark_quotes_and_encoding(tmp_path):
    assert read_table(write(tmp_path, b"\xef\xbb\xbfa,b\n1,2\n")).columns.tolist() == ["a", "b"]
    assert read_table(write(tmp_path, 'a,b\n1,"x, ""y""\nz"\n'))["b"].tolist() == ['x, "y"\nz']
    assert read_table(write(tmp_path, "a\né\n".encode("latin-1")), encoding="latin-1")["a"].tolist() == ["é"]
    assert read_table(write(tmp_path, "a,b\né,1\n".encode("utf-16")), encoding="utf-16")["b"].tolist() == [1]


def test_parquet_index_is_no_feature_and_a_named_one_is_a_column(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3]}).iloc[[0, 2, 1]]
    frame.to_parquet(tmp_path / "plain.parquet")
    assert read_table(tmp_path / "plain.parquet").columns.tolist() == ["a"]
    frame.set_index(pd.Index([9, 2, 4], name="user")).to_parquet(tmp_path / "named.parquet")
    assert read_table(tmp_path / "named.parquet")["user"].tolist() == [9, 2, 4]


def test_files_in_partition_folders_gain_no_column(tmp_path):
    (tmp_path / "user=3").mkdir()
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "user=3" / "t.parquet")
    assert read_table(tmp_path / "user=3" / "t.parquet").columns.tolist() == ["a"]


def test_a_frame_is_left_alone_and_rows_are_renumbered():
    frame = pd.DataFrame({0: [1, 2, 3]}).iloc[1:]
    back = read_table(frame)
    assert back.index.tolist() == [0, 1] and back.columns.tolist() == ["0"]
    assert frame.index.tolist() == [1, 2] and frame.columns.tolist() == [0]


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["empty file"]),
        (b"\n\n", ["table in file"]),
        (b"a,b\n", ["rows in file", "none"]),
        (b"a,b,a\n1,2,3\n", ["distinct column names", "'a' more than once"]),
        (b",b\n1,2\n", ["a name for column 1", "without its index"]),
        (b"a,b\n1,2\n3\n", ["2 columns in each row", "1 in row 2"]),
        (b"a,b\n1,2\n3,4,5\n", ["2 columns in each row", "3 in row 2"]),
        (b"a,b\n1,2\n3,\xff\n", ["utf-8 text", "line 3"]),
        (b"a,\xe9\n1,2\n", ["utf-8 text", "line 1"]),
        (b'a,b\n1,"x\n2,y\n', ["closing quote"]),
        (b'a,b\n1,"x""', ["closing quote"]),
        (b'a,b\n1,"', ["closing quote"]),
    ],
)
def test_bad_csv(tmp_path, content, parts):
    path = write(tmp_path, content)
    refused(path, re.escape(str(path)), *parts)


def test_quotes_that_do_end_are_no_error(tmp_path):
    for last in ('"x"', '""', '""""', 'x"', '"x\n"'):
        for end in ("", "\n", "\r\n"):
            assert len(read_table(write(tmp_path, f"a,b\n1,{last}{end}"))) == 1


def test_other_bad_sources(tmp_path):
    refused(tmp_path / "none.csv", "none there")
    refused(tmp_path, "none there")
    refused(write(tmp_path, "a\n1\n", "t.txt"), r"\.csv, \.tsv or \.parquet", "t.txt")
    refused(write(tmp_path, "a\n1\n"), "text encoding", "'utf-9'", encoding="utf-9")
    refused(write(tmp_path, "a\n1\n"), "ascii|utf-16", encoding="utf-16")
    refused(pd.DataFrame([[1, 2]], columns=["a", "a"]), "distinct column names in the rows", name="rows")
    refused(pd.DataFrame([[1, 2]], columns=["1", 1]), "'1' more than once")
    refused(pd.DataFrame({"a": []}), "rows in the table")
    refused(pd.DataFrame(), "columns in the table")


def test_bad_parquet(tmp_path):
    good = tmp_path / "t.parquet"
    pd.DataFrame({"a": range(1000), "b": ["x"] * 1000}).to_parquet(good)
    content = good.read_bytes()
    for cut in (0, 3, 100, len(content) // 2, len(content) - 1):
        refused(write(tmp_path, content[:cut], "cut.parquet"), "Parquet file", "cut.parquet", "truncated or damaged")
    refused(write(tmp_path, b"a,b\n1,2\n", "csv.parquet"), "Parquet file")
    parquet.write_table(pa.table([[1], [2]], names=["a", "a"]), good)
    refused(good, "distinct column names", "'a' more than once")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.text('a,1"\n\r\t é|', max_size=60).map(str.encode))
def test_any_bytes_give_a_table_or_an_input_error(tmp_path_factory, content):
    path = write(tmp_path_factory.mktemp("fuzz"), content)
    try:
        frame = read_table(path)
    except InputError:
        return
    assert len(frame) and frame.columns.is_unique


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_damage_to_parquet_is_an_input_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "t.parquet"
    pd.DataFrame({"a": range(20), "b": list("abcde") * 4}).to_parquet(path, compression="none")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    with suppress(InputError):
        assert read_table(path).columns.is_unique


def test_semicolons_and_decimal_commas_are_named_as_such(tmp_path):
    (tmp_path / "t.csv").write_text("user;rating\na;3,5\nb;4,0\n")
    with pytest.raises(InputError, match=r"columns apart by commas .*, got 'user;rating'"):
        read_table(tmp_path / "t.csv")
