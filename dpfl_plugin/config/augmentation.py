"""Views of images (`augmentation`)."""

from __future__ import annotations

from pydantic import Field, model_validator

from dpfl_plugin.config.blocks import Strict


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
