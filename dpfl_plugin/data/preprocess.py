"""Preprocessing of a federation's features, with what each step means for privacy.

A step changes the silos in place and returns caveats. What is fitted is fitted on training records only, of those that
can be used. A step fitted on private records is outside the privacy guarantee, and says so; the data-free steps cost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn depends on it

from dpfl_plugin import registry
from dpfl_plugin.data.base import Features, Federation
from dpfl_plugin.data.files import numeric_features, read_npz
from dpfl_plugin.errors import ConfigError, DataError, NoFileError, UnsupportedError, nearest, require

MOST_OF_NORM: Final = 0.9
Doubles = NDArray[np.float64]
Step = Callable[..., list[str]]


def preprocess(
    federation: Federation,
    steps: Sequence[str | Mapping[str, Any]],
    base: Path,
    more: Mapping[str, Step] | None = None,
) -> None:
    """Apply steps in order, each a name or ``{name: ..., option: ...}``, and add their caveats to the federation.

    Args:
        more: further steps besides `STEPS`, of rooms that this one must not know.

    Raises:
        ConfigError: a step or an option is unknown or wrong; the message names ``data.preprocess[i]``.
    """
    for index, (step, options) in enumerate(_known(steps, more)):
        federation.caveats += registry.build(step, options, federation, base, where=f"data.preprocess[{index}]")
        federation.feature_shape = federation.silos[0].train_x.shape[1:]


def check_steps(steps: Sequence[str | Mapping[str, Any]], more: Mapping[str, Step] | None = None) -> None:
    """Check the names of steps, and the names and types of their options, without records.

    Raises:
        ConfigError: as `preprocess`.
    """
    for index, (step, options) in enumerate(_known(steps, more)):
        registry.check_options(step, options, where=f"data.preprocess[{index}]")


def _known(
    steps: Sequence[str | Mapping[str, Any]], more: Mapping[str, Step] | None
) -> Iterator[tuple[Step, dict[str, Any]]]:
    """Each step as a function, and its options."""
    known = {**STEPS, **(more or {})}
    for index, given in enumerate(steps):
        options = {"name": given} if isinstance(given, str) else dict(given)
        name = options.pop("name", None)
        if name not in known:
            raise ConfigError(
                f"data.preprocess[{index}].name={name!r} is unknown{nearest(str(name), known)}. Known: "
                f"{', '.join(known)}."
            )
        yield known[name], options


_FIT: Final = {"standardise": "pooled", "pca": "train"}  # by default; of all silos' records together


def pooled(steps: Iterable[str | Mapping[str, Any]]) -> bool:
    """Whether a step is fitted on all silos' records together."""
    return any(fit in _FIT.values() for _, fit in _fits(steps))


def fitted_on_records(steps: Iterable[str | Mapping[str, Any]]) -> list[str]:
    """The steps that are fitted on private records: of all silos together, or of each silo."""
    return [name for name, fit in _fits(steps) if fit in (*_FIT.values(), "silo")]


def fitted_on_files(steps: Iterable[str | Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(step, file) of the steps that are fitted on the records of a file, which whoever names it calls public."""
    known = (*_FIT.values(), "silo", "none")
    return [(name, str(fit)) for name, fit in _fits(steps) if fit is not None and fit not in known]


def _fits(steps: Iterable[str | Mapping[str, Any]]) -> list[tuple[str, object]]:
    """(name, on what it is fitted) of each step."""
    given = [{"name": step} if isinstance(step, str) else step for step in steps]
    return [(str(step.get("name")), step.get("fit", _FIT.get(str(step.get("name"))))) for step in given]


def standardise(
    federation: Federation,
    base: Path,
    *,
    fit: Literal["pooled", "silo", "none"] = "pooled",
    mean: float | None = None,
    std: float | None = None,
) -> list[str]:
    """Subtract the mean of each feature and divide by its standard deviation; a constant feature becomes 0.

    fit: the statistics of all silos' training records ("pooled"), of each silo's own ("silo"), or the public
    constants ``mean`` and ``std`` for every feature ("none"; data-free).
    """
    if (fit == "none") != (mean is not None and std is not None) or (fit != "none" and (mean, std) != (None, None)):
        raise ConfigError(f"fit={fit!r}: give mean and std with fit: none, and only there.")
    if fit == "none":
        require(std is not None and 0 < std < np.inf, "std", std, "be positive and finite")
        for silo in federation.silos:
            for x in (silo.train_x, silo.test_x):
                x -= np.float32(mean or 0.0)
                x /= np.float32(std or 1.0)
        return []
    pooled = _moments([silo.usable_train_x for silo in federation.silos]) if fit == "pooled" else None
    for silo in federation.silos:
        centre, scale_ = pooled or _moments([silo.usable_train_x])
        for x in (silo.train_x, silo.test_x):
            x -= centre.astype(np.float32)
            x *= np.divide(1, scale_, out=np.zeros_like(scale_), where=scale_ > 0).astype(np.float32)
    whose = "all silos' private training records" if fit == "pooled" else "each silo's private training records"
    return [
        f"standardise: mean and standard deviation were taken from {whose} without noise, which the privacy guarantee "
        "does not cover; use fit: none with public constants"
    ]


def unit_norm(federation: Federation, base: Path) -> list[str]:
    """Scale each record to L2 norm 1 over all its features; a record of zeros stays. Data-free."""
    for silo in federation.silos:
        for x in (silo.train_x, silo.test_x):
            flat = x.reshape(len(x), -1)
            norms = np.sqrt(np.einsum("nd,nd->n", flat, flat, dtype=np.float64))
            flat /= np.where(norms > 0, norms, 1.0).astype(np.float32)[:, None]
    federation.notes += _one_column(federation)
    return []


def _one_column(federation: Federation) -> list[str]:
    """A note if one feature makes nearly all of the records' norms, which are 1."""
    if len(federation.feature_shape) != 1:
        return []
    squares = sum(np.einsum("nd,nd->d", silo.train_x, silo.train_x, dtype=np.float64) for silo in federation.silos)
    share = np.asarray(squares) / max(1, sum(len(silo.train_y) for silo in federation.silos))
    largest = int(share.argmax())
    if share[largest] <= MOST_OF_NORM or len(share) == 1:
        return []
    name = repr(federation.columns[largest]) if federation.columns else str(largest)
    return [
        f"unit_norm: column {name} makes {share[largest]:.1%} of the records' squared norms, and the other "
        f"{len(share) - 1} next to nothing: a model hardly sees them. Bring columns to one scale, by constants "
        "that are public"
    ]


def scale(federation: Federation, base: Path, *, factor: float = 1.0, offset: float = 0.0) -> list[str]:
    """x * factor + offset. Data-free."""
    require(np.isfinite(factor) and factor != 0, "factor", factor, "be finite and not 0")
    require(np.isfinite(offset), "offset", offset, "be finite")
    for silo in federation.silos:
        for x in (silo.train_x, silo.test_x):
            x *= np.float32(factor)
            x += np.float32(offset)
    return []


def pca(federation: Federation, base: Path, *, dims: int, fit: str = "train") -> list[str]:
    """Project centred features [*shape] on the ``dims`` directions of largest variance; features become [dims].

    fit: "train" (all silos' training records), or the path of an NPZ file of public records with an array x (or
    features) [n, *shape], relative to the configuration file's folder. Signs are fixed: the largest entry of each
    direction is positive.
    """
    d = int(np.prod(federation.feature_shape))
    require(1 <= dims <= d, "dims", dims, f"be from 1 to {d}, the number of features")
    public = None if fit == "train" else _public_features(base, fit, d)
    fitted_on = [public] if public is not None else [silo.usable_train_x.reshape(-1, d) for silo in federation.silos]
    centre, directions = _principal_directions(fitted_on, dims)
    for silo in federation.silos:
        silo.train_x = _project(silo.train_x.reshape(-1, d), centre, directions)
        silo.test_x = _project(silo.test_x.reshape(-1, d), centre, directions)
    federation.columns = ()
    if public is not None:
        return [f"pca: fitted on the records of {fit}, which are taken to be public"]
    return [
        "pca: fitted on all silos' private training records without noise, which the privacy guarantee does not cover; "
        "use fit: with a file of public records"
    ]


def hog(
    federation: Federation, base: Path, *, orientations: int = 9, cell: int = 7, block: int = 2, side: int | None = None
) -> list[str]:
    """Histograms of oriented gradients of each image, [features]: frozen features for a linear model. Data-free.

    N. Dalal, B. Triggs, "Histograms of Oriented Gradients for Human Detection", CVPR 2005, as scikit-image computes
    them, with L2-Hys blocks.

    orientations: bins of an angle; cell: side of a cell in pixels; block: side of a block in cells; side: of the square
    images, where records are flat (left out: the root of their length). Images are [side, side] or [1, height, width].

    Raises:
        ConfigError: records are no grey images, cells do not fit, or scikit-image is not installed.
    """
    for key, value in {"orientations": orientations, "cell": cell, "block": block}.items():
        require(value >= 1, key, value, "be 1 or more")
    height, width = _image_shape(federation.feature_shape, side)
    if min(height, width) // cell < block:
        raise ConfigError(f"cell={cell}, block={block}: no block fits into images of {height} x {width} pixels.")
    try:
        from skimage.feature import hog as histograms  # imported late: it takes a second
    except ImportError as error:
        raise ConfigError("hog needs scikit-image: pip install 'dpfl-plugin[images]'.") from error

    def features(x: Features) -> Features:
        made = [
            histograms(image, orientations, (cell, cell), (block, block), block_norm="L2-Hys")
            for image in x.reshape(-1, height, width)
        ]
        empty = ((height // cell - block + 1) * (width // cell - block + 1), block * block * orientations)
        return np.array(made, np.float32).reshape(len(x), empty[0] * empty[1])

    for silo in federation.silos:
        silo.train_x, silo.test_x = features(silo.train_x), features(silo.test_x)
    federation.columns = ()
    return []


def _image_shape(shape: tuple[int, ...], side: int | None) -> tuple[int, int]:
    """(height, width) of grey images whose records have ``shape``."""
    if len(shape) == 1:
        width = side or round(shape[0] ** 0.5)
        require(width * width == shape[0], "side", side, f"be the side of square images of {shape[0]} pixels")
        return width, width
    require(side is None, "side", side, "be left out, where records are images and not flat")
    grey = shape if len(shape) == 2 else shape[1:] if len(shape) == 3 and shape[0] == 1 else None
    if grey is None:
        raise ConfigError(f"hog needs grey images, [side, side] or [1, height, width]; records are {list(shape)}.")
    return grey[0], grey[1]


def parity(federation: Federation, base: Path) -> list[str]:
    """Labels become 1 where odd and 0 where even (after the partition, which sees the original ones). Data-free.

    Gao et al. 2024, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited", Sec. 4.
    """
    if federation.outcome.kind != "classes":
        raise UnsupportedError(
            f"data.preprocess: parity makes two classes of class numbers; labels are {federation.outcome.kind} here."
        )
    for silo in federation.silos:
        silo.train_y, silo.test_y = silo.train_y % 2, silo.test_y % 2
    federation.num_classes, federation.class_names = 2, ("even", "odd")
    return []


STEPS: Final[dict[str, Step]] = {
    "standardise": standardise,
    "unit_norm": unit_norm,
    "pca": pca,
    "scale": scale,
    "hog": hog,
    "parity": parity,
}


def _moments(parts: Sequence[Features]) -> tuple[Doubles, Doubles]:
    """Mean and standard deviation [*shape] over the records of all parts."""
    n = max(1, sum(len(x) for x in parts))
    mean: Doubles = sum(x.sum(axis=0, dtype=np.float64) for x in parts) / np.float64(n)
    squares: Doubles = sum(np.square(x - mean, dtype=np.float64).sum(axis=0) for x in parts) / np.float64(n)
    return mean, np.sqrt(squares)  # exactly 0 for a constant: up to 2^29 equal float32 values sum without rounding


def _principal_directions(parts: Sequence[Features], dims: int) -> tuple[Doubles, Doubles]:
    """The mean [d] and directions [d, dims] of the records [n, d] of all parts."""
    n, d = max(1, sum(len(x) for x in parts)), parts[0].shape[1]
    mean: Doubles = sum(x.sum(axis=0, dtype=np.float64) for x in parts) / np.float64(n)
    scatter = np.zeros((d, d))
    with threadpool_limits(1):  # the same bits on every rank, however many cores it has
        for x in parts:
            centred = x - mean
            scatter += centred.T @ centred
        vectors: Doubles = np.linalg.eigh(scatter)[1][:, ::-1][:, :dims]
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(dims)]
    return mean, vectors * np.sign(largest)


def _project(x: Features, centre: Doubles, directions: Doubles) -> Features:
    with threadpool_limits(1):
        return ((x - centre) @ directions).astype(np.float32)


def _public_features(base: Path, name: str, d: int) -> Features:
    path = base / Path(name).expanduser()
    if not path.is_file():
        public = f"pca.fit={name!r}: there is no such file beside the configuration."
        raise NoFileError(f"pca.fit: there is no file {path.absolute()}.", public)
    arrays = read_npz(path)
    x = arrays.get("x", arrays.get("features"))
    if x is None or x.ndim < 2 or int(np.prod(x.shape[1:])) != d:
        raise DataError(f"{path} must hold an array x (or features) of records with {d} features.")
    return numeric_features(x, path).reshape(len(x), d)
