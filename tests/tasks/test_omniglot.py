"""Omniglot: every form of the data gives the same classes, and damage is said with the file's name."""

import io
import re
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from warmstart.core import InputError
from warmstart.tasks.class_split import split_classes, take_classes
from warmstart.tasks.images import make_images, with_rotations
from warmstart.tasks.omniglot import read_omniglot, split_omniglot
from warmstart.tasks.picture_folder import find_repeats

# official number: part, alphabet and character; numbers do not follow the alphabet of names
CHARACTERS = {
    1: ("images_background", "Zulu", 1),
    2: ("images_background", "Zulu", 2),
    3: ("images_background", "Arcadian", 1),
    4: ("images_evaluation", "Keble", 1),
}


def strokes(number, drawer):
    """White with a black patch, 105 x 105, of one bit."""
    values = np.full((105, 105), 255, np.uint8)
    values[10 * number : 10 * number + 30, 10 * drawer : 10 * drawer + 20] = 0
    return Image.fromarray(values).convert("1")


def drawings():
    for number, (part, alphabet, within) in CHARACTERS.items():
        for drawer in (1, 2, 3):
            name = f"{part}/{alphabet}/character{within:02d}/{number:04d}_{drawer:02d}.png"
            buffer = io.BytesIO()
            strokes(number, drawer).save(buffer, "PNG")
            yield part, name, buffer.getvalue()


def write_archives(folder):
    folder.mkdir(exist_ok=True)
    for part in ("images_background", "images_evaluation"):
        with zipfile.ZipFile(folder / f"{part}.zip", "w") as archive:
            archive.writestr(f"{part}/", b"")
            archive.writestr(f"__MACOSX/{part}/._0001_01.png", b"no picture")
            for place, name, content in reversed(list(drawings())):
                if place == part:
                    archive.writestr(name, content)


def write_arrays(folder, **changes):
    rows = [(number, drawer) for number in CHARACTERS for drawer in (1, 2, 3)]
    names = ["Arcadian", "Keble", "Zulu"]
    small = [
        Image.fromarray(255 - np.array(strokes(*row).convert("L"))).resize((28, 28), Image.Resampling.LANCZOS)
        for row in rows
    ]
    arrays = {
        "images": np.stack([np.array(image) for image in small]),
        "character": np.array([number for number, _ in rows], np.int16),
        "drawer": np.array([drawer for _, drawer in rows], np.int8),
        "alphabet": np.array([names.index(CHARACTERS[number][1]) for number, _ in rows], np.int8),
        "char_in_alphabet": np.array([CHARACTERS[number][2] for number, _ in rows], np.int8),
        "alphabet_names": np.array(names),
    }
    folder.mkdir(exist_ok=True)
    arrays.update(changes)
    np.savez(folder / "omniglot_28x28.npz", **{name: value for name, value in arrays.items() if value is not None})


def refused(call, *parts):
    with pytest.raises(InputError) as caught:
        call()
    for part in parts:
        assert re.search(part, str(caught.value)), (part, str(caught.value))
    assert "\n" not in str(caught.value)


def test_archives_folders_and_arrays_agree(tmp_path):
    write_archives(tmp_path / "zips")
    for _, name, content in drawings():
        path = tmp_path / "folders" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    write_arrays(tmp_path / "omniglot")
    read = [read_omniglot(tmp_path / "zips"), read_omniglot(tmp_path / "folders"), read_omniglot(tmp_path)]
    for images in read:
        assert images.names == ("Zulu/character01", "Zulu/character02", "Arcadian/character01", "Keble/character01")
        assert images.lengths.tolist() == [3, 3, 3, 3] and images.shape == (1, 28, 28)
        assert torch.equal(images.pixels, read[0].pixels)
    # ink is bright on dark: of the first drawing, rows 10 to 39 and columns 10 to 29 of 105
    first = read[0].pixels[0, 0]
    assert int(first[6, 5]) > 250 and int(first[20, 20]) == 0


def test_another_size_needs_the_archives(tmp_path):
    write_arrays(tmp_path)
    refused(lambda: read_omniglot(tmp_path, 105), "images_background.zip and images_evaluation.zip", "WARMSTART_DATA")
    write_archives(tmp_path)
    images = read_omniglot(tmp_path, 105)
    assert images.shape == (1, 105, 105) and set(images.pixels.unique().tolist()) == {0, 255}
    assert int((images.pixels[0] == 255).sum()) == 600
    refused(lambda: read_omniglot(tmp_path, 0), "a size of at least 1, got 0")


def test_missing_and_damaged_archives(tmp_path):
    refused(lambda: read_omniglot(tmp_path / "no"), "a folder .*no, got none there")
    refused(lambda: read_omniglot(tmp_path), "omniglot_28x28.npz, or images_background.zip and", "got none; download")
    write_archives(tmp_path)
    (tmp_path / "images_evaluation.zip").rename(tmp_path / "kept")
    refused(lambda: read_omniglot(tmp_path), "got none")
    whole = (tmp_path / "kept").read_bytes()
    for content in (b"", whole[:300], whole[: len(whole) // 2], whole[:100] + bytes(200) + whole[300:]):
        (tmp_path / "images_evaluation.zip").write_bytes(content)
        refused(lambda: read_omniglot(tmp_path), "images_evaluation.zip, got", "download it again")
    with zipfile.ZipFile(tmp_path / "images_evaluation.zip", "w") as archive:
        archive.writestr("readme.txt", b"x")
    refused(lambda: read_omniglot(tmp_path), "NNNN_DD.png in .*images_evaluation.zip, got none")
    with zipfile.ZipFile(tmp_path / "images_evaluation.zip", "w") as archive:
        archive.writestr("images_evaluation/Keble/character01/0004_01.png", b"no picture")
    refused(lambda: read_omniglot(tmp_path), "a whole picture in .*0004_01.png of .*images_evaluation.zip")
    first = next(drawings())[2]
    with zipfile.ZipFile(tmp_path / "images_evaluation.zip", "w") as archive:
        archive.writestr("images_evaluation/Keble/character01/0001_04.png", first)
    refused(lambda: read_omniglot(tmp_path), "one official number for each character")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drawer": None}, "drawer is not a file in the archive"),
        ({"images": np.zeros((12, 28, 27), np.uint8)}, r"uint8 \[n, 28, 28\] in .*npz, got uint8 \[12, 28, 27\]"),
        ({"images": np.zeros((12, 28, 28))}, "got float64"),
        ({"images": np.zeros((0, 28, 28), np.uint8)}, r"got uint8 \[0, 28, 28\]"),
        ({"images": np.uint8(3)}, r"got uint8 \[\]"),
        ({"drawer": np.arange(11)}, "whole numbers .* for each image of .*npz"),
        ({"character": np.arange(12) / 2}, "whole numbers"),
        ({"alphabet": np.full(12, 3)}, "a name for every alphabet"),
        ({"alphabet": np.full(12, -1)}, "a name for every alphabet"),
        ({"alphabet_names": np.array([None, None, None])}, "npz, got .*[Oo]bject"),
        ({"alphabet_names": np.arange(3)}, "a name for every alphabet"),
        ({"char_in_alphabet": np.arange(12)}, "one official number"),
        ({"drawer": np.ones(12, int)}, "one drawing by each drawer of a character in .*npz, got 8 repeated"),
    ],
)
def test_wrong_arrays(tmp_path, changes, message):
    write_arrays(tmp_path, **changes)
    refused(lambda: read_omniglot(tmp_path), message, "omniglot_28x28.npz", "again")


def test_truncated_arrays(tmp_path):
    write_arrays(tmp_path)
    file = tmp_path / "omniglot_28x28.npz"
    whole = file.read_bytes()
    for content in (b"", b"\x80\x04.", whole[:400], whole[:-30], whole[:600] + b"x" * 50 + whole[650:]):
        file.write_bytes(content)
        refused(lambda: read_omniglot(tmp_path), "omniglot_28x28.npz, got", "again")


def blank(characters=1623, drawers=20):
    names = tuple(f"A/character{i}" for i in range(characters))
    pixels = torch.zeros(characters * drawers, 1, 1, 1, dtype=torch.uint8)
    return make_images(pixels, torch.full((characters,), drawers), names)


def test_split_sizes_and_that_the_test_does_not_depend_on_what_is_held_out():
    split = split_omniglot(blank())
    assert [len(part) for part in split] == [1100, 100, 423]
    other = split_omniglot(blank(), held_out=0)
    assert other.test == split.test and set(other.train) == {*split.train, *split.validation}
    assert split_omniglot(blank(), seed=1).test != split.test
    assert split == split_classes(blank(), (1100, 100, 423), 0)


def test_a_split_of_part_of_the_data_is_refused():
    refused(lambda: split_omniglot(blank(1622)), "1,623 characters with 20 drawings each, got 1,622 with 20 to 20")
    refused(lambda: split_omniglot(blank(drawers=19)), "got 1,623 with 19 to 19")
    refused(lambda: split_omniglot(with_rotations(blank(500))), "add rotations after splitting")
    refused(lambda: split_omniglot(blank(), held_out=1200), "0 to 1,199 characters held out, got 1200")


def test_the_real_data(shared_data):
    if not (shared_data / "omniglot" / "omniglot_28x28.npz").exists():
        pytest.skip("no omniglot_28x28.npz there")
    images = read_omniglot(shared_data)
    assert images.pixels.shape == (32460, 1, 28, 28)
    assert images.names[0] == "Arcadian/character01" and images.names[-1] == "ULOG/character26"
    assert 0.05 < float(images.pixels.float().mean()) / 255 < 0.2  # strokes are few and bright
    split = split_omniglot(images)
    # fixed: results are compared over versions
    assert split.train[:2] == ("Arcadian/character02", "Arcadian/character04")
    assert split.test[:2] == ("Arcadian/character01", "Arcadian/character03")
    train = with_rotations(take_classes(images, split.train))
    assert len(train.names) == 4400
    assert find_repeats(images) == [(3822, 3838)]  # two drawers' single dot of Braille


def test_the_real_archives_agree_with_the_real_arrays(shared_data, tmp_path):
    archive, arrays = (shared_data / "omniglot" / name for name in ("images_background.zip", "omniglot_28x28.npz"))
    if not (archive.exists() and arrays.exists()):
        pytest.skip("not both forms there")
    (tmp_path / "images_evaluation").mkdir()
    with zipfile.ZipFile(archive) as whole:
        for name in whole.namelist():
            if "/Braille/" in name:
                whole.extract(name, tmp_path)
            elif "/Greek/character01/" in name:  # something in the other part too
                whole.extract(name, tmp_path / "images_evaluation")
    some, images = read_omniglot(tmp_path), read_omniglot(shared_data)
    assert len(some.names) == 27
    assert torch.equal(some.pixels, take_classes(images, some.names).pixels)
