"""Copies between the host and a device for which neither waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfl_plugin.late import torch

if TYPE_CHECKING:
    from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy host values to a device; on CUDA from pinned memory, which the host may leave at once."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def to_host(values: Tensor) -> Tensor:
    """Copy values to the host; only the calling thread waits for them, and for nothing that was asked for later."""
    if not values.is_cuda:
        return values.cpu()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    torch.cuda.current_stream(values.device).record_event().synchronize()
    return host
