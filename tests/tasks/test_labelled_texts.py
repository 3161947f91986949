"""Texts with labels from files, and where these are wrong."""

import pytest

from warmstart.core import InputError
from warmstart.tasks.labelled_texts import TextRows, read_rows


def write(folder, name, content):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_both_forms_hold_the_same(tmp_path):
    lines = '{"text": "so, so", "label": "bad"}\n\n{"text": "say \\"yes\\"", "label": "good", "id": 3}\n'
    table = '\ufefftext,id,label\n"so, so",1,bad\n"say ""yes""",2,good\n'
    wanted = TextRows(("so, so", 'say "yes"'), ("bad", "good"))
    assert read_rows(write(tmp_path, "a.jsonl", lines)) == read_rows(write(tmp_path, "a.csv", table)) == wanted


def test_pairs_are_joined_and_labels_may_be_numbers(tmp_path):
    lines = '{"text": "it rains", "text2": "it is wet", "label": 1}\n{"text": "sun", "text2": "wet", "label": "0"}'
    found = read_rows(write(tmp_path, "a.jsonl", lines))
    assert found.texts[0] == "it rains xxnext it is wet" and found.labels == ("1", "0")


def test_a_line_of_a_table_is_counted_with_breaks_inside_quotes(tmp_path):
    with pytest.raises(InputError, match=r"2 columns in line 4 of .*a\.csv, got 3"):
        read_rows(write(tmp_path, "a.csv", 'text,label\n"two\nlines",a\nno, quotes,b\n'))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": ', r"JSON in line 2 of .*a\.jsonl"),
        ("a.jsonl", '["a", "b"]', "an object in line 1"),
        ("a.jsonl", '{"text": "a"}', r"a column label in .*a\.jsonl, got text in line 1"),
        ("a.jsonl", '{"text": null, "label": "b"}', "a text in line 1, column text of"),
        ("a.jsonl", '{"text": ["a"], "label": "b"}', r"column text of .*, got \['a'\]"),
        ("a.jsonl", '{"text": "a", "label": 3.8}', "the number 3.8 in line 1, column label; make classes"),
        ("a.jsonl", '{"text": "a", "label": 1.0}', "the number 1.0 in line 1"),
        ("a.jsonl", '{"text": "a", "label": "3."}', "the number 3. in line 1"),
        ("a.csv", "text,label\na,b\na,-1E3\n", "the number -1E3 in line 3"),
        ("a.csv", "text,label\na,.5e-3\n", "the number .5e-3 in line 2"),
        ("a.jsonl", '{"text": "a", "label": NaN}', "a name of a class or a whole number in line 1, .*, got nan"),
        ("a.jsonl", '{"text": "a", "label": -Infinity}', "a whole number in line 1, .*, got -inf"),
        ("a.jsonl", '{"text": "a", "label": true}', "a whole number in line 1, .*, got True"),
        ("a.jsonl", '{"text": "a", "label": ["b"]}', "a whole number in line 1, column label"),
        ("a.jsonl", '{"text": "a", "label": null}', "line 1, column label of .*, got nothing"),
        ("a.jsonl", '{"text": 5, "label": "b"}', "a text in line 1, column text of .*, got 5"),
        ("a.jsonl", '{"text": NaN, "label": "b"}', "a text in line 1, column text of .*, got nan"),
        ("a.jsonl", '{"text": "a", "text2": null, "label": "b"}', "a text in line 1, column text2 of .*, got nothing"),
        ("a.csv", "text,text2,label\na,,b\n", "a text in line 2, column text2 of .*, got nothing"),
        ("a.jsonl", '{"text": "a", "text2": "c", "label": 1}\n{"text": "a", "label": 1}', "or in none, .* line 2"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "a", "text2": "c", "label": 1}', "or in none, .* line 2"),
        ("a.jsonl", '{"text": ' + "[" * 100_000, "JSON in line 1"),
        ("a.csv", "text,label\n" + "word " * 30_000 + ",b\n", r"field limit .* in line 2; write .* as \.jsonl"),
        ("a.csv", "text,label,text\na,b,c\n", "every column once in .*, got 'text' more than once"),
        ("a.jsonl", "\n", "rows in"),
        ("a.jsonl", b'{"text": "a", "label": "b"}\n{"text": "\xff"}', "other bytes in line 2"),
        ("a.csv", "text,label\na,b\n,b\n", "a text in line 3, column text of"),
        ("a.csv", "words,label\na,b\n", "a column text in .*, got words, label in line 2"),
        ("a.csv", 'text,label\n"a,b\n', "in line 2"),
        ("a.csv", "", "rows in"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, content, words):
    with pytest.raises(InputError, match=words):
        read_rows(write(tmp_path, name, content))
