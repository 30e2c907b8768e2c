"""MNIST and its relatives in the IDX format."""

from __future__ import annotations

import math
import struct

import numpy as np
from numpy.typing import NDArray

from dpfl_plugin.data.base import Dataset, Features
from dpfl_plugin.data.fetch import DataSource
from dpfl_plugin.errors import DataError

PARTS = ("train", "t10k")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist"
# Of the uncompressed files.
MNIST_SHA256 = {
    f"train-{IMAGES}": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    f"train-{LABELS}": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    f"t10k-{IMAGES}": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    f"t10k-{LABELS}": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
# Of the .gz files, as Zalando publishes them.
FASHION_MD5 = {
    f"train-{IMAGES}": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    f"train-{LABELS}": "25c81989df183df01b3e8a0aad5dffbe",
    f"t10k-{IMAGES}": "bef4ecab320f06d8554ea6380940ec79",
    f"t10k-{LABELS}": "bb300cfdad3c16e7a12a480ee83cd310",
}
EMNIST_URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
EMNIST_MD5 = "58c8d27c78d21e728a6bc7b3cc06412e"  # of gzip.zip


def mnist(source: DataSource, *, flatten: bool = True) -> Dataset:
    """60,000 + 10,000 grey images of 28 x 28 pixels in 0..1, ten digits.

    Y. LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 86(11), 1998.
    features: [n, 784], or [n, 1, 28, 28] unless ``flatten``.
    """

    def read(name: str) -> bytes:
        alternatives = (name, f"MNIST/raw/{name}")  # as others lay the files out
        url, sha256 = f"{MNIST_URL}/{name}.gz", MNIST_SHA256[name]
        return source.file(f"mnist/{name}", url=url, sha256=sha256, alternatives=alternatives)

    train, test = (
        _images(read(f"{part}-{IMAGES}"), read(f"{part}-{LABELS}"), f"mnist {part}", n, 10, flatten)
        for part, n in zip(PARTS, (60_000, 10_000), strict=True)
    )
    return _join(train, test)


def fashion_mnist(source: DataSource, *, flatten: bool = True) -> Dataset:
    """60,000 + 10,000 grey images of 28 x 28 pixels in 0..1, ten kinds of clothes.

    H. Xiao et al., "Fashion-MNIST", arXiv:1708.07747v2. features as in `mnist`. A fetched file is checked against the
    published MD5; one found in the folder by its structure only.
    """

    def read(name: str) -> bytes:
        alternatives = (f"FashionMNIST/raw/{name}",)
        url, md5 = f"{FASHION_URL}/{name}.gz", f"md5:{FASHION_MD5[name]}"
        return source.file(f"fashion_mnist/{name}", url=url, download_hash=md5, alternatives=alternatives)

    train, test = (
        _images(read(f"{part}-{IMAGES}"), read(f"{part}-{LABELS}"), f"fashion_mnist {part}", n, 10, flatten)
        for part, n in zip(PARTS, (60_000, 10_000), strict=True)
    )
    return _join(train, test)


def emnist_balanced(source: DataSource, *, flatten: bool = True) -> Dataset:
    """112,800 + 18,800 grey images of 28 x 28 pixels in 0..1, 47 letters and digits, equally many of each.

    G. Cohen et al., "EMNIST: an extension of MNIST to handwritten letters", arXiv:1702.05373v2. features as in
    `mnist`. The fetched zip file is checked against the published MD5; files found in the folder by structure only.
    """

    def read(part: str, kind: str) -> bytes:
        name = f"emnist-balanced-{part}-{kind}"
        alternatives = (f"EMNIST/raw/{name}",)
        md5, archive = f"md5:{EMNIST_MD5}", "emnist/gzip.zip"
        return source.file(
            f"emnist/{name}", url=EMNIST_URL, download_hash=md5, alternatives=alternatives, archive=archive
        )

    train, test = (
        _images(read(part, IMAGES), read(part, LABELS), f"emnist_balanced {part}", n, 47, flatten, transposed=True)
        for part, n in (("train", 112_800), ("test", 18_800))
    )
    return _join(train, test)


def parse_idx(data: bytes, source: str) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an IDX file.

    Raises:
        DataError: the magic number is wrong, or the length is not what the dimensions say.
    """
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise DataError(f"{source} is not an IDX file of unsigned bytes: it begins with {data[:4].hex(' ')}.")
    num_dims = data[3]
    start = 4 + 4 * num_dims
    shape = struct.unpack_from(f">{num_dims}I", data, 4) if len(data) >= start else (-1,)
    if len(data) - start != math.prod(shape):
        raise DataError(f"{source}: {len(data)} bytes, but its header says dimensions {shape}. Fetch it again.")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def _images(
    images: bytes, labels: bytes, name: str, n: int, num_classes: int, flatten: bool, transposed: bool = False
) -> Dataset:
    raw, y = parse_idx(images, f"{name} images"), parse_idx(labels, f"{name} labels")
    if raw.shape != (n, 28, 28) or y.shape != (n,):
        raise DataError(f"{name}: images {raw.shape} and labels {y.shape}, expected ({n}, 28, 28) and ({n},).")
    if transposed:
        raw = raw.transpose(0, 2, 1)
    features: Features = np.ascontiguousarray(raw).astype(np.float32)
    features /= 255
    shape = (n, 784) if flatten else (n, 1, 28, 28)
    return Dataset(features.reshape(shape), y.astype(np.int64), num_classes)


def _join(train: Dataset, test: Dataset) -> Dataset:
    return Dataset(train.features, train.labels, train.num_classes, test=test)
