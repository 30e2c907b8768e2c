"""What the owner of the data on this machine lets be released, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.owners.lifetime import ROUNDING, Reservation, read_lifetime, remaining, spent
from dpfl_plugin.owners.limits import NONE_SET, Limits, find_limits, read_limits

__all__ = ["Limits", "OwnerLimits", "Reservation", "limits"]


@dataclass(frozen=True, slots=True)
class OwnerLimits:
    """An owner's limits that are in order, and what agreements have reserved of them.

    Attributes:
        limits: what the file says: ``folder``, ``epsilon``, ``delta``, ``unit``, ``data``, ``send``, ``repeatable``;
            ``source`` is the file.
        agreements: in the lifetime ledger of these data, each with its ``name``, ``epsilon`` and ``delta``.
        epsilon_left, delta_left: what further agreements may have, 0 or more.
    """

    limits: Limits
    agreements: tuple[Reservation, ...]
    epsilon_left: float
    delta_left: float

    @property
    def exceeded(self) -> bool:
        """Whether more is reserved than the file allows by now: agreements that are under way stop."""
        most = self.limits.epsilon, self.limits.delta
        return any(sums > (1 + ROUNDING) * one for sums, one in zip(spent(self.agreements), most, strict=True))


def limits(file: str | Path | None = None) -> OwnerLimits:
    """Check a limits file (docs/limits.md), and read what is left of its lifetime budget; as `dpfl limits`.

    Nothing is made or written, and a silo may be at work meanwhile.

    Args:
        file: None: the one that counts on this machine.

    Raises:
        ConfigError: there is no such file, it is wrong, or others can write to it or to the owner's folder.
        LimitError: the lifetime ledger of the data counts for another unit.
        LedgerError: that ledger is damaged, or it is missing or was set back: what was released is not known.
    """
    require(file is None or isinstance(file, str | Path), "file", file, "be the path of a limits file")
    found = find_limits() if file is None else read_limits(Path(file).expanduser().absolute())
    if found is None:
        raise ConfigError(f"{NONE_SET}.")
    agreements = tuple(read_lifetime(found))
    return OwnerLimits(found, agreements, *remaining(found, agreements))
