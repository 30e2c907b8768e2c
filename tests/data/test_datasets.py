"""The data sets hold what their publishers say; a damaged file is refused.

Tests on real files are skipped where there is no folder of them (see tests/conftest.py).
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfl_plugin.data import adult as adult_module
from dpfl_plugin.data import digits as digits_module
from dpfl_plugin.data import idx
from dpfl_plugin.data.adult import adult
from dpfl_plugin.data.base import Dataset, validate
from dpfl_plugin.data.cifar10 import MD5, TEST, TRAIN, cifar10, parse_pickle
from dpfl_plugin.data.digits import digits
from dpfl_plugin.data.femnist import femnist, read_leaf
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.data.mushrooms import mushrooms
from dpfl_plugin.errors import DataError


@pytest.fixture(scope="module")
def load(data_folder: Path) -> Callable[..., Dataset]:
    @functools.cache
    def loaded(plugin: Callable[..., Dataset], **options: Any) -> Dataset:
        needed = data_folder / plugin.__name__
        if not needed.is_dir():
            pytest.skip(f"{needed} is not there")
        data = plugin(DataSource(folder=data_folder), **options)
        validate(data, plugin.__name__)
        return data

    return loaded


def counts(data: Dataset) -> list[int]:
    return [int(count) for count in np.bincount(data.labels, minlength=data.num_classes)]


# --- the real files ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mnist(load: Callable[..., Dataset]) -> None:
    data = load(idx.mnist)
    assert data.features.shape == (60_000, 784)
    assert data.test is not None
    assert data.test.features.shape == (10_000, 784)
    assert counts(data) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(data.test) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.features.mean() == pytest.approx(0.1307, abs=5e-5)
    assert data.test.features.mean() == pytest.approx(0.1325, abs=5e-5)
    assert data.features.min() == 0
    assert data.features.max() == 1


@pytest.mark.slow
def test_mnist_images_stand_upright(load: Callable[..., Dataset]) -> None:
    data = load(idx.mnist, flatten=False)
    ones = data.features[data.labels == 1]
    assert ones.shape[1:] == (1, 28, 28)
    assert ones.mean(axis=(0, 1)).max(axis=0).argmax() in (13, 14)  # a one is a vertical stroke in the middle
    assert np.ptp(np.flatnonzero(ones.mean(axis=(0, 1, 3)) > 0.02)) > np.ptp(
        np.flatnonzero(ones.mean(axis=(0, 1, 2)) > 0.05)
    )


@pytest.mark.slow
def test_adult(load: Callable[..., Dataset]) -> None:
    data = load(adult)
    assert data.features.shape == (32_561, 108)
    assert data.test is not None
    assert data.test.features.shape == (16_281, 108)
    assert counts(data) == [24_720, 7_841]
    assert counts(data.test) == [12_435, 3_846]
    for part, missing in ((data, 2_399), (data.test, 1_221)):
        assert part.features.min() >= 0
        assert part.features.max() <= 1
        place, unknown = 0, np.zeros(len(part.features))
        for kind in adult_module.COLUMNS.values():
            if isinstance(kind[0], str):
                block = part.features[:, place : place + len(kind)]
                assert (block.sum(axis=1) == 1).all()
                assert set(np.unique(block)) == {0.0, 1.0}
                if "?" in kind:
                    unknown += block[:, kind.index("?")]
            place += len(kind) if isinstance(kind[0], str) else 1
        assert (unknown > 0).sum() == missing


@pytest.mark.slow
def test_adult_first_row(load: Callable[..., Dataset]) -> None:
    """39, State-gov, 77516, Bachelors, 13, ...: numbers unscaled on request."""
    raw, scaled = load(adult, scale=False).features[0], load(adult).features[0]
    assert raw[0] == 39
    assert raw[10] == 77516
    assert scaled[0] == pytest.approx((39 - 17) / (90 - 17))
    workclass = adult_module.COLUMNS["workclass"]
    assert workclass[int(raw[1 : 1 + len(workclass)].argmax())] == "State-gov"


def test_mushrooms(load: Callable[..., Dataset]) -> None:
    data = load(mushrooms)
    assert data.features.shape == (6_513, 126)
    assert data.test is not None
    assert data.test.features.shape == (1_611, 126)
    assert counts(data) == [3_373, 3_140]
    assert counts(data.test) == [835, 776]
    for part in (data, data.test):
        assert (part.features.sum(axis=1) == 22).all()
        assert set(np.unique(part.features)) == {0.0, 1.0}


@pytest.mark.slow
def test_cifar10_sheets(data_folder: Path) -> None:
    """4,000 + 1,000 images; counts of classes as published with the sheets, and an image that lies as it stands."""
    if not (data_folder / "cifar10_subset").is_dir():
        pytest.skip("cifar10_subset is not there")
    data = cifar10(DataSource(folder=data_folder), flatten=False, sheets=True)
    validate(data, "cifar10")
    assert data.features.shape == (4_000, 3, 32, 32) and data.test is not None
    assert counts(data) == [396, 366, 420, 384, 422, 393, 414, 385, 407, 413]
    assert counts(data.test) == [103, 89, 100, 103, 90, 86, 112, 102, 106, 109]
    # Neighbours are alike in both directions, and blue is on top of ships and aeroplanes, not at their side.
    x = data.features
    apart = np.abs(x - x[::-1]).mean()
    for axis in (2, 3):
        assert np.abs(np.diff(x, axis=axis)).mean() < 0.3 * apart
    sky = x[np.isin(data.labels, (0, 8))].mean(axis=0)
    assert sky[2, :8].mean() > sky[0, :8].mean() + 0.03 and abs(sky[2, :, :8].mean() - sky[2, :, -8:].mean()) < 0.02


@pytest.mark.slow
def test_femnist(load: Callable[..., Dataset]) -> None:
    """The sample of 105 writers; a folder with another number of files has other counts."""
    data = load(femnist)
    assert data.groups is not None
    assert data.test is not None
    assert data.test.groups is not None
    if len(np.unique(data.groups)) != 105:
        pytest.skip("femnist/ holds another sample than the 105 writers whose counts are known")
    assert data.features.shape == (14_708, 784)
    assert data.test.features.shape == (1_685, 784)
    assert set(data.labels) == set(data.test.labels) == set(range(62))
    assert np.bincount(data.groups).min() == 4
    assert np.bincount(data.groups).max() == 165
    assert np.array_equal(np.unique(data.test.groups), np.arange(105))
    assert data.features.min() >= 0
    assert data.features.max() == 1
    assert np.median(data.features) == 1


def test_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("sklearn.datasets.load_digits", None)  # the file is found, and nothing else is asked
        data = digits(DataSource())
    validate(data, "digits")
    monkeypatch.setattr(digits_module, "find_spec", lambda name: None)  # where the file is not found
    by_scikit_learn = digits(DataSource())
    assert np.array_equal(data.features, by_scikit_learn.features)
    assert np.array_equal(data.labels, by_scikit_learn.labels)
    assert data.features.shape == (1797, 64)
    assert counts(data) == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.features.max() == 1
    assert digits(DataSource(), flatten=False).features.shape == (1797, 1, 8, 8)


@pytest.mark.slow
def test_a_real_file_with_one_byte_changed_is_refused(data_folder: Path, tmp_path: Path) -> None:
    original = data_folder / "mnist" / "t10k-labels-idx1-ubyte.gz"
    if not original.is_file():
        pytest.skip(f"{original} is not there")
    for path in original.parent.iterdir():
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / path.name).symlink_to(path)
    changed = bytearray(gzip.decompress(original.read_bytes()))
    changed[100] = (changed[100] + 1) % 10  # still a label
    (tmp_path / "mnist" / original.name).unlink()
    (tmp_path / "mnist" / original.name).write_bytes(gzip.compress(changed))
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is not the published file"):
        idx.mnist(DataSource(folder=tmp_path))


# --- made-up files ----------------------------------------------------------------------------------------------


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_emnist(folder: Path) -> np.ndarray:
    images = np.zeros((112_800, 28, 28), dtype=np.uint8)
    images[0, 3, 20] = 255  # stored transposed: row 20, column 3 of the picture
    labels = np.repeat(np.arange(47, dtype=np.uint8), 2_400)
    (folder / "emnist").mkdir()
    for part, n in (("train", 112_800), ("test", 18_800)):
        (folder / f"emnist/emnist-balanced-{part}-images-idx3-ubyte").write_bytes(idx_bytes(images[:n]))
        (folder / f"emnist/emnist-balanced-{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels[:n]))
    return labels


@pytest.mark.slow
def test_emnist_images_are_turned_upright(tmp_path: Path) -> None:
    labels = write_emnist(tmp_path)
    data = idx.emnist_balanced(DataSource(folder=tmp_path), flatten=False)
    assert data.num_classes == 47
    assert np.array_equal(data.labels, labels)
    assert np.argwhere(data.features[0, 0] > 0).tolist() == [[20, 3]]


def test_fashion_mnist_has_a_folder_of_its_own_and_strict_sizes(tmp_path: Path) -> None:
    (tmp_path / "fashion_mnist").mkdir()
    for name in idx.FASHION_MD5:
        array = np.zeros((7, 28, 28) if "images" in name else (7,), dtype=np.uint8)
        (tmp_path / "fashion_mnist" / name).write_bytes(idx_bytes(array))
    with pytest.raises(DataError, match=r"fashion_mnist train: images \(7, 28, 28\)"):
        idx.fashion_mnist(DataSource(folder=tmp_path))


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b + b"\0",
        lambda b: b"\1" + b[1:],
        lambda b: b[:2] + b"\x0d" + b[3:],
        lambda b: b[:6],
    ],
)
def test_idx_structure_is_checked(damage: Callable[[bytes], bytes]) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(idx.parse_idx(idx_bytes(array), "file"), array)
    with pytest.raises(DataError, match=r"^file"):
        idx.parse_idx(damage(idx_bytes(array)), "file")


def test_adult_numbers_are_clipped_to_their_range() -> None:
    assert adult_module.encode(["-5", "50", "200"], (0.0, 100.0), True).ravel().tolist() == [0, 0.5, 1]


def leaf(writers: dict[str, int], **changes: Any) -> dict[str, Any]:
    content = {
        "users": list(writers),
        "num_samples": list(writers.values()),
        "user_data": {w: {"x": [[0.5] * 784] * n, "y": list(range(n))} for w, n in writers.items()},
    }
    return content | changes


def write_leaf(folder: Path, part: str, name: str, content: dict[str, Any]) -> Path:
    path = folder / "femnist" / part / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def test_femnist_groups_are_writers_whatever_the_file(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train", "one.json", leaf({"zoe": 3, "bob": 2}))
    write_leaf(tmp_path, "train", "two.json.gz", leaf({"kim": 4}))
    write_leaf(tmp_path, "test", "any.json", leaf({"kim": 1, "zoe": 2}))
    data = femnist(DataSource(folder=tmp_path), flatten=False)
    assert data.features.shape == (9, 1, 28, 28)
    assert data.test is not None
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert data.test.groups is not None
    assert data.test.groups.tolist() == [1, 2, 2]
    assert data.labels.tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": [3]}, "'bob' has images .* num_samples says 3"),
        ({"num_samples": [2, 1]}, "not LEAF's JSON"),
        ({"users": ["eve"]}, "do not name the same writers"),
        ({"users": None}, "not LEAF's JSON"),
        ({"user_data": {"bob": {"x": [[0.5] * 783] * 2, "y": [0, 1]}}}, "784 pixels"),
        ({"user_data": {"bob": {"x": [[0.5] * 784, [0.5]], "y": [0, 1]}}}, "'bob' are not images"),
        ({"user_data": {"bob": {"x": [[0.5] * 784] * 2, "y": [0]}}}, "1 labels; num_samples says 2"),
        ({"user_data": {"bob": {"y": [0, 1]}}}, "'bob' are not images"),
    ],
)
def test_leaf_structure_is_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_leaf(tmp_path, "train", "one.json", leaf({"bob": 2}, **changes))
    with pytest.raises(DataError, match=message) as error:
        read_leaf(path)
    assert str(path) in str(error.value)


def test_femnist_says_which_writers_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="LEAF"):
        femnist(DataSource(folder=tmp_path))
    write_leaf(tmp_path, "train", "one.json", leaf({"bob": 2}))
    write_leaf(tmp_path, "test", "one.json", leaf({"eve": 2}))
    with pytest.raises(DataError, match="writer 'eve', whom femnist/train does not"):
        femnist(DataSource(folder=tmp_path))
    write_leaf(tmp_path, "train", "two.json", leaf({"bob": 2}))
    with pytest.raises(DataError, match="writer 'bob' is in another file too"):
        femnist(DataSource(folder=tmp_path))


def test_cut_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(leaf({"bob": 2}))[:-10])
    with pytest.raises(DataError, match="not LEAF's JSON"):
        read_leaf(path)


# --- what every data set is checked for -------------------------------------------------------------------------


def small(**changes: Any) -> Dataset:
    parts: dict[str, Any] = {
        "features": np.ones((4, 3), np.float32),
        "labels": np.array([0, 1, 0, 1]),
        "num_classes": 2,
    }
    return Dataset(**(parts | changes))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            small(features=np.array([[1, 2], [3, np.nan], [1, 1], [1, 1]], np.float32)),
            r"feature \(1,\) of row 1 is nan",
        ),
        (small(features=np.array([[1, np.inf]] * 4, np.float32)), r"feature \(1,\) of row 0 is inf"),
        (small(labels=np.array([0, 1, 2, 1])), r"the label of row 2 is 2, outside 0\.\.1"),
        (small(labels=np.array([0, -1, 0, 1])), "the label of row 1 is -1"),
        (small(labels=np.array([0, 1])), "another length"),
        (small(groups=np.array([0, 1])), "another length"),
        (small(features=np.ones((0, 3), np.float32), labels=np.zeros(0, np.int64)), "no records"),
        (small(features=np.ones(4, np.float32)), "no records"),
        (small(features=np.ones((4, 3))), "float32"),
        (small(num_classes=1, labels=np.zeros(4, np.int64)), "at least 2"),
        (small(test=small(labels=np.array([0, 1, 7, 1]))), r" \(test part\): the label of row 2 is 7"),
        (small(test=small(features=np.ones((4, 2), np.float32))), "the test part has other features"),
    ],
)
def test_validate_names_source_row_and_value(data: Dataset, message: str) -> None:
    with pytest.raises(DataError, match=f"^source.*{message}"):
        validate(data, "source")


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------


def binary_cifar(folder: Path) -> None:
    """Three images a file; a pixel tells its file, its image, its colour and its place."""
    folder.mkdir(parents=True)
    for number, name in enumerate((*TRAIN, TEST)):
        rows = [
            bytes([(number + image) % 10, number, image, *([7] * 1022), *([8] * 1024), *range(256), *([9] * 768)])
            for image in range(3)
        ]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))


@pytest.mark.parametrize("place", ["cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_cifar10_in_its_binary_format(tmp_path: Path, place: str) -> None:
    binary_cifar(tmp_path / place)
    data = cifar10(DataSource(folder=tmp_path), flatten=False)
    assert data.features.shape == (15, 3, 32, 32) and data.test is not None
    assert data.labels.tolist() == [(number + image) % 10 for number in range(5) for image in range(3)]
    assert data.test.labels.tolist() == [5, 6, 7]
    seen = np.rint(data.features[4] * 255)  # the second image of the second file
    assert seen[0, 0, :3].tolist() == [1, 1, 7] and (seen[1] == 8).all()
    assert seen[2, :8].ravel().tolist() == list(range(256)) and (seen[2, 8:] == 9).all()
    assert cifar10(DataSource(folder=tmp_path)).features.shape == (15, 3072)


def test_cifar10_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    source = DataSource(folder=tmp_path)
    with pytest.raises(DataError, match="neither cifar-10-batches-bin nor"):
        cifar10(source)
    with pytest.raises(DataError, match="there are 0 sheets"):
        cifar10(source, sheets=True)
    folder = tmp_path / "cifar-10-batches-bin"
    binary_cifar(folder)
    whole = (folder / "data_batch_2.bin").read_bytes()
    (folder / "data_batch_2.bin").write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"data_batch_2.bin: 9218 bytes are no whole number"):
        cifar10(source)
    (folder / "data_batch_2.bin").write_bytes(bytes([10]) + whole[1:])
    with pytest.raises(DataError, match="labels from 2 to 10"):
        cifar10(source)
    (folder / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2.bin missing"):
        cifar10(source)


def test_a_pickle_is_opened_only_if_it_is_the_published_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "opened",)

    with pytest.raises(DataError, match="is not the published file"):
        parse_pickle(pickle.dumps(Trap()), "data_batch_1")
    assert not (tmp_path / "opened").exists()
    made = pickle.dumps({"data": np.arange(3072, dtype=np.uint8)[np.newaxis], "labels": [3]})
    monkeypatch.setitem(MD5, "data_batch_1", hashlib.md5(made).hexdigest())
    pixels, labels = parse_pickle(made, "somewhere/data_batch_1")
    assert labels.tolist() == [3] and pixels.shape == (1, 3, 32, 32) and pixels[0, 1, 0, 1] == (1024 + 1) % 256
    with pytest.raises(DataError):
        parse_pickle(made, "somewhere/data_batch_2")
