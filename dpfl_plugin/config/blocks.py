"""What parts of a configuration are made of: strict models, and blocks that name a plugin with its options."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator, model_validator

from dpfl_plugin import plain_values


class Strict(BaseModel):
    """A part of a configuration: keys that it does not know, and values of other types, are refused.

    A block, list or mapping that is null is left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields.items()
        blocks = {one.alias or key for key, one in fields if isinstance(one.default, BaseModel | list | dict)}
        return {key: value for key, value in values.items() if value is not None or key not in blocks}

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        plain_values.check(cls.model_fields[info.field_name].annotation, value)
        return value


class Block(BaseModel):
    """A plugin by ``name``, or users' own code by ``module: package.module:factory``; and its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = None
    module: str | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Block:
        if (self.name is None) == (self.module is None):
            raise ValueError("a block needs exactly one of name (a registered plugin) and module (package.module:name)")
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


def plugin_block(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


PluginBlock = Annotated[Block, BeforeValidator(plugin_block)]
