"""In what precision the forward and backward passes multiply. Norms, clipping and sums are always in full precision.

A gradient from a reduced pass is another gradient than the exact one, and that is all: its norm is taken, and it is
scaled and added up, in the model's own number format, from the very numbers that the pass has left. So one example
adds at most C, whatever the pass did. An engine that multiplies reduced numbers into its sums could not say that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import torch
from torch import Tensor

from dpfl_plugin.errors import UnsupportedError

Precision = Literal["float32", "bf16", "tf32"]
"""float32: that of the model; bf16: matrix products and convolutions in bfloat16; tf32: in CUDA's 19-bit format."""


EXACT: Final = ("highest", "ieee", "none")
# Environment variables by which libraries of CUDA and ROCm multiply float32 in another format, whatever torch says.
_OF_LIBRARIES: Final = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE", "HIPBLASLT_ALLOW_TF32")
_BACKENDS: Final = ("", "mkldnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")


def products() -> dict[str, str]:
    """In which format torch was told, in this process, to multiply float32, by the name of the setting."""
    try:
        found = {"torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision()}
    except RuntimeError:  # one of its backends was told something else
        found = {"torch.get_float32_matmul_precision()": "not one for all backends"}
    for name in _BACKENDS:
        part: Any = torch.backends
        for key in name.split(".") if name else ():
            part = getattr(part, key, None)
        setting = f"torch.backends{'.' * bool(name)}{name}.fp32_precision"
        found[setting] = str(getattr(part, "fp32_precision", "none"))
    return found


def check_products(*devices: torch.device) -> None:
    """Raise UnsupportedError where torch was told to reduce products everywhere (`products`), or libraries of one of
    the devices were."""
    reduced = {key: value for key, value in products().items() if value not in EXACT}
    if any(device.type == "cuda" for device in devices):
        for key, value in sorted(os.environ.items()):
            if key.startswith(_OF_LIBRARIES) and value.strip() not in ("", "0"):
                raise UnsupportedError(
                    f"the environment variable {key} is {value!r}: products on GPUs would be rounded otherwise than "
                    "torch says, so that a record could add more than clip_norm. Unset it, and use runtime.precision, "
                    "which reduces what is safe to reduce."
                )
    if reduced:
        key, value = next(iter(reduced.items()))
        raise UnsupportedError(
            f"{key} is {value!r}: clipped sums would be rounded after their norms were taken, so that a record could "
            "add more than clip_norm. Leave it as torch begins with it ('highest', 'ieee'), and use runtime.precision, "
            "which reduces what is safe to reduce."
        )


def check(precision: Precision, y: Tensor) -> None:
    """
    Args:
        y: a model's parameters; of its records, word numbers are integers in every precision.

    Raises:
        UnsupportedError: ``precision`` is not for such a model and device, or products would be reduced everywhere.
    """
    check_products(y.device)
    if precision == "float32":
        return
    if y.dtype != torch.float32:
        raise UnsupportedError(
            f"runtime.precision={precision!r} is for runtime.dtype: float32, and the model is in "
            f"{str(y.dtype).removeprefix('torch.')}. Use runtime.dtype: float32, or leave precision out."
        )
    if precision == "tf32" and y.device.type != "cuda":
        raise UnsupportedError("runtime.precision='tf32' is a number format of CUDA devices. Use float32 or bf16.")


def full(outputs: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    """A model's outputs in the number format of its parameters."""
    return outputs.to(next(iter(parameters.values())).dtype)


@contextlib.contextmanager
def passes(precision: Precision, device: torch.device) -> Iterator[None]:
    """Forward and backward passes in ``precision``, also within an autocast of a caller; on CUDA, in no less than was
    asked for."""
    with contextlib.ExitStack() as stack:
        if precision == "bf16" or torch.is_autocast_enabled(device.type):
            stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"))
        if device.type == "cuda":
            matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
            stack.callback(setattr, matmul, "allow_tf32", matmul.allow_tf32)
            stack.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
            matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
        yield


def unreduced(device: torch.device) -> torch.autocast:
    """Out of an autocast that a caller is in: it would round sums after the norms of what is added up were taken."""
    return torch.autocast(device.type, torch.bfloat16, enabled=False)
