"""CIFAR-10: colour images of ten kinds of things."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Dataset, Integers
from dpfl_plugin.data.fetch import DataSource, read_file
from dpfl_plugin.errors import DataError, NoFileError

NUM_CLASSES: Final = 10
PIXELS: Final = 3 * 32 * 32
TRAIN: Final = tuple(f"data_batch_{k}" for k in range(1, 6))
TEST: Final = "test_batch"
MD5: Final = {  # of the files of cifar-10-python.tar.gz: pickles run code, so that none but these is opened
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
SHEETS: Final = "cifar10_subset"
FIRST_TEST_SHEET: Final = 50  # of 1,000 images each
URL: Final = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

Images = tuple[NDArray[np.uint8], Integers]
"""Pixels [n, 3, 32, 32] and labels [n]."""


def cifar10(source: DataSource, *, flatten: bool = True, sheets: bool = False) -> Dataset:
    """50,000 + 10,000 colour images of 32 x 32 pixels in 0..1, ten classes.

    A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", University of Toronto 2009. Reads
    ``cifar-10-batches-bin/*.bin``, or the files of ``cifar-10-batches-py`` if they have their published MD5. With
    ``sheets`` instead what there is of ``cifar10_subset/cifar10_batch_K.png``, 1,000 images in the rows of each (from
    K = 50 on to test), and ``cifar10_labels.js``, as ConvNetJS has them. features: [n, 3072], or [n, 3, 32, 32] unless
    ``flatten``.

    Raises:
        DataError: files are missing, damaged, or others than they should be.
    """
    train, test = _sheets(source) if sheets else _batches(source)
    return Dataset(*_as_records(train, flatten), NUM_CLASSES, test=Dataset(*_as_records(test, flatten), NUM_CLASSES))


def _as_records(images: Images, flatten: bool) -> tuple[NDArray[np.float32], Integers]:
    pixels, labels = images
    features = pixels.astype(np.float32)
    features /= 255
    return features.reshape(len(features), -1) if flatten else features, labels


def _batches(source: DataSource) -> tuple[Images, Images]:
    """The published files, in the format of which there are any."""
    formats: dict[str, tuple[str, Callable[[bytes, str], Images]]] = {
        "cifar-10-batches-bin": (".bin", parse_binary),
        "cifar-10-batches-py": ("", parse_pickle),
    }
    for folder, (suffix, parse) in formats.items():
        for place in (folder, f"cifar10/{folder}"):
            paths = {name: source.root / place / f"{name}{suffix}" for name in (*TRAIN, TEST)}
            if not any(path.is_file() for path in paths.values()):
                continue
            missing = [path.name for path in paths.values() if not path.is_file()]
            if missing:
                names = ", ".join(missing)
                what = f"{names} missing. Unpack the whole archive there."
                raise NoFileError(f"{source.root / place}: {what}", f"{place}: {what} It is in {source.called}.")
            images = {name: parse(read_file(path), str(path)) for name, path in paths.items()}
            return _joined([images[name] for name in TRAIN]), images[TEST]
    raise DataError(
        f"there is neither cifar-10-batches-bin nor cifar-10-batches-py in {source.root}. Download {URL} on a machine "
        f"with a network and unpack it there. If {SHEETS} there has PNG sheets of a part of it: set sheets: true."
    )


def _joined(parts: Sequence[Images]) -> Images:
    return np.concatenate([pixels for pixels, _ in parts]), np.concatenate([labels for _, labels in parts])


def parse_binary(data: bytes, source: str) -> Images:
    """Records of a byte for the label and 3,072 of pixels, a plane for each colour.

    Raises:
        DataError: the length is none of such records, or a label is none of the ten.
    """
    if not data or len(data) % (PIXELS + 1):
        raise DataError(f"{source}: {len(data)} bytes are no whole number of records of 3,073. Fetch it again.")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, PIXELS + 1)
    return _checked(rows[:, 1:], rows[:, 0], source)


def parse_pickle(data: bytes, source: str) -> Images:
    """A published pickle, whose MD5 is checked before it is opened.

    Raises:
        DataError: it is another file.
    """
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if md5 != MD5.get(Path(source).name):
        raise DataError(
            f"{source} is not the published file (md5 {md5}), and a pickle of unknown origin is not opened: it could "
            f"run any code. Fetch it again, or use the binary version, {URL}."
        )
    content: Any = pickle.loads(data, encoding="latin1")
    return _checked(np.asarray(content["data"], dtype=np.uint8), np.asarray(content["labels"]), source)


def _checked(pixels: NDArray[np.uint8], labels: NDArray[Any], source: str) -> Images:
    if pixels.shape != (len(labels), PIXELS) or labels.min() < 0 or labels.max() >= NUM_CLASSES:
        raise DataError(
            f"{source}: images {pixels.shape} and labels from {labels.min()} to {labels.max()}; expected "
            f"{PIXELS} numbers an image and labels from 0 to 9. Fetch it again."
        )
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def _sheets(source: DataSource) -> tuple[Images, Images]:
    sheets = {int(path.stem.rpartition("_")[2]): path for path in source.matching(f"{SHEETS}/cifar10_batch_*.png")}
    train, test = ([k for k in sorted(sheets) if (k >= FIRST_TEST_SHEET) == tests] for tests in (False, True))
    if not train or not test:
        raise DataError(
            f"sheets: true needs sheets to train on (cifar10_batch_0.png to cifar10_batch_49.png) and to test on "
            f"(from cifar10_batch_{FIRST_TEST_SHEET}.png on) in {source.root / SHEETS}; there are {len(sheets)} sheets."
        )
    text = source.file(f"{SHEETS}/cifar10_labels.js", url=None).decode()
    labels = np.array(json.loads(re.sub(r"^[^\[]*|;?\s*$", "", text)), dtype=np.int64)
    parts = {k: _sheet(path, labels, 1000 * k) for k, path in sheets.items()}
    return _joined([parts[k] for k in train]), _joined([parts[k] for k in test])


def _sheet(path: Path, labels: Integers, first: int) -> Images:
    """The images in the rows of a sheet, each of 32 x 32 points in row order; image r has label ``first`` + r."""
    from matplotlib.image import imread  # imported late: it takes a while

    try:
        points = imread(io.BytesIO(read_file(path)), format="png")
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError: what Pillow raises of a damaged PNG
        raise DataError(f"{path} is no PNG image: {error}. Fetch it again.") from error
    if points.ndim != 3 or points.shape[1] != 1024 or points.shape[2] < 3 or first + len(points) > len(labels):
        raise DataError(
            f"{path}: {points.shape} points and labels for {max(0, len(labels) - first)} images; expected a row of "
            "1,024 colours and a label for each image."
        )
    pixels = np.rint(points[:, :, :3] * 255).astype(np.uint8).transpose(0, 2, 1)
    own = labels[first : first + len(points)]
    return _checked(np.ascontiguousarray(pixels).reshape(len(points), PIXELS), own, str(path))
