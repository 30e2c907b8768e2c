"""A small convolutional network."""

from __future__ import annotations

from torch import nn

from dpfl_plugin.errors import ConfigError, require


def cnn(
    feature_shape: tuple[int, ...],
    num_classes: int,
    *,
    channels: tuple[int, int] = (16, 32),
    groups: int = 4,
    hidden: int = 64,
) -> nn.Module:
    """Two convolutions and two linear layers, [n, C, H, W] -> [n, num_classes]; PyTorch's initialisation.

    GroupNorm (Wu and He 2018, arXiv:1803.08494v3) normalises each record by itself; batch statistics would mix
    records, and then no gradient belongs to one record.

    Raises:
        ConfigError: the features are no images of 4 x 4 pixels or more, or groups do not divide the channels.
    """
    if len(feature_shape) != 3 or min(feature_shape[1:]) < 4:
        raise ConfigError(
            f"name='cnn' needs images [channels, height, width] of 4 x 4 or more and the data has {feature_shape}. "
            "Set the data set's flatten: false, or use mlp."
        )
    require(groups >= 1 and all(c >= 1 and c % groups == 0 for c in channels), "groups", groups, f"divide {channels}")
    require(hidden >= 1, "hidden", hidden, "be 1 or more")
    first, second = channels
    height, width = feature_shape[1] // 4, feature_shape[2] // 4  # two poolings
    return nn.Sequential(
        nn.Conv2d(feature_shape[0], first, 3, padding=1),
        nn.GroupNorm(groups, first),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 3, padding=1),
        nn.GroupNorm(groups, second),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * height * width, hidden),
        nn.ReLU(),
        nn.Linear(hidden, num_classes),
    )
