"""FEMNIST: handwritten characters, one silo for each writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dpfl_plugin.data.base import Dataset, Features
from dpfl_plugin.data.fetch import DataSource, read_file
from dpfl_plugin.errors import DataError

NUM_CLASSES = 62
NUM_PIXELS = 784
Writers = dict[str, tuple[Features, list[int]]]


def femnist(source: DataSource, *, flatten: bool = True) -> Dataset:
    """Grey images of 28 x 28 pixels (1 is white), 62 classes, natural silos by writer.

    S. Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097v3. Reads all of
    ``femnist/train/*.json`` and ``femnist/test/*.json`` (also .json.gz), as LEAF's preprocessing writes them.
    features: [n, 784], or [n, 1, 28, 28] unless ``flatten``; groups: writers, sorted by name.

    Raises:
        DataError: there are no files, a file is not LEAF's JSON, its counts disagree, or a test writer is unknown.
    """
    train, test = _read(source, "train"), _read(source, "test")
    number = {writer: index for index, writer in enumerate(sorted(train))}
    strangers = sorted(set(test) - set(train))
    if strangers:
        raise DataError(
            f"femnist/test holds writer {strangers[0]!r}, whom femnist/train does not. "
            "Split inside each writer: LEAF's preprocess.sh -t sample."
        )
    joined = _join(train, number, flatten)
    return Dataset(joined.features, joined.labels, NUM_CLASSES, joined.groups, test=_join(test, number, flatten))


def _read(source: DataSource, part: str) -> Writers:
    paths = [*source.matching(f"femnist/{part}/*.json"), *source.matching(f"femnist/{part}/*.json.gz")]
    if not paths:
        raise DataError(
            f"there is no *.json or *.json.gz in {source.root / 'femnist' / part}. Make them with LEAF "
            "(github.com/TalwalkarLab/leaf, data/femnist: ./preprocess.sh -s niid --sf 0.05 -k 0 -t sample) and copy "
            "data/train and data/test to femnist/train and femnist/test."
        )
    writers: Writers = {}
    for path in paths:
        for writer, records in read_leaf(path).items():
            if writer in writers:
                raise DataError(f"{path}: writer {writer!r} is in another file too. Keep one version of each file.")
            writers[writer] = records
    return writers


def read_leaf(path: Path) -> Writers:
    """The images [n, 784] and labels [n] of each writer in one file of LEAF's.

    Raises:
        DataError: the file is not LEAF's JSON, or num_samples disagrees; the message names file and writer.
    """
    try:
        content: Any = json.loads(read_file(path))
        users, counts, data = content["users"], content["num_samples"], content["user_data"]
        pairs = list(zip(users, counts, strict=True))
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path} is not LEAF's JSON with users, num_samples and user_data: {type(error).__name__}: {error}."
        ) from error
    if len(set(users)) != len(users) or set(users) != set(data):
        raise DataError(f"{path}: users and user_data do not name the same writers, each once.")
    writers: Writers = {}
    for writer, count in pairs:
        try:
            x, y = np.array(data[writer]["x"], dtype=np.float32), [int(label) for label in data[writer]["y"]]
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path}: the records of writer {writer!r} are not images and labels: {error}.") from error
        if len(y) != count or x.shape != (count, NUM_PIXELS):
            raise DataError(
                f"{path}: writer {writer!r} has images {x.shape} and {len(y)} labels; num_samples says {count}, "
                f"and an image has {NUM_PIXELS} pixels."
            )
        writers[writer] = x, y
    return writers


def _join(writers: Writers, number: dict[str, int], flatten: bool) -> Dataset:
    ordered = sorted(writers)
    features = np.concatenate([writers[writer][0] for writer in ordered])
    labels = np.concatenate([np.array(writers[writer][1], dtype=np.int64) for writer in ordered])
    groups = np.repeat([number[writer] for writer in ordered], [len(writers[writer][1]) for writer in ordered])
    return Dataset(
        features if flatten else features.reshape(-1, 1, 28, 28), labels, NUM_CLASSES, groups.astype(np.int64)
    )
