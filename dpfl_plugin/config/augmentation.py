"""Views of images (`augmentation`), and what they do not go together with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from dpfl_plugin.config.blocks import Strict

if TYPE_CHECKING:
    from dpfl_plugin.config.schema import Config


class AugmentationConfig(Strict):
    """Random views of each image, whose mean gradient is clipped as the record's."""

    views: int = Field(ge=1, le=1024, description="k views of each record at every step; k times the work")
    flip: bool = Field(default=False, description="views may be mirrored, left to right: not for digits or letters")
    crop: int = Field(default=0, ge=0, description="pixels by which views are moved at most, with borders reflected")

    @model_validator(mode="after")
    def _something(self) -> AugmentationConfig:
        if not self.flip and not self.crop:
            raise ValueError(f"{self.views} views that differ in nothing: set crop or flip, or leave augmentation out")
        return self


def check_augmentation(config: Config) -> None:
    """Raise ValueError for what nothing is proven of, or what has no views."""
    if config.augmentation is None:
        return
    for wrong, key, why in (
        (config.privacy.unit == "person", "privacy.unit: person", "views of a person's records are not proven"),
        (config.privacy.sampler == "cyclic", "privacy.sampler: cyclic", "cycles are proven for records as they are"),
        (config.runtime.lockstep is True, "runtime.lockstep", "views are made and answered silo by silo"),
        (config.runtime.graphs, "runtime.graphs", "views are made and answered silo by silo"),
    ):
        if wrong:
            raise ValueError(f"augmentation with {key}: {why}; leave out augmentation, or {key}")
