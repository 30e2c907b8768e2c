"""What the owner of the data on this machine lets be released, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpfl_plugin.core.rounding import digits, digits_down
from dpfl_plugin.core.text import Printed
from dpfl_plugin.errors import ConfigError, require
from dpfl_plugin.owners.lifetime import Reservation, Total, read_lifetime
from dpfl_plugin.owners.limits import NONE_SET, Limits, find_limits, read_limits

__all__ = ["Limits", "OwnerLimits", "Reservation", "limits"]


@dataclass(frozen=True, slots=True)
class OwnerLimits(Printed):
    """An owner's limits that are in order, and what agreements have reserved; ``print`` shows what `dpfl limits` does.

    Attributes:
        limits: what the file says: ``folder``, ``epsilon``, ``delta``, ``unit``, ``data``, ``send``;
            ``source`` is the file.
        agreements: in the lifetime ledger of these data, each with its ``name``, ``epsilon`` and ``delta``.
        epsilon_total: the smallest limit on epsilon that affords all of these, at the limits' delta.
        epsilon_left, delta_left: about what further agreements may come to, 0 or more.
        exceeded: whether more is agreed than the file allows by now: agreements that are under way stop.
    """

    limits: Limits
    agreements: tuple[Reservation, ...]
    epsilon_total: float
    epsilon_left: float
    delta_left: float
    exceeded: bool

    def __str__(self) -> str:
        owner = self.limits
        left = f"about {digits_down(self.epsilon_left, 3)} at {digits_down(self.delta_left, 6)}"
        lines = [
            f"{owner.source}: in order",
            f"  folder {owner.folder}, data {owner.data!r}, each {owner.unit} is protected",
            f"  besides private releases may be sent: {', '.join(sorted(owner.send)) or 'nothing'}",
        ]
        lines += [
            f"  agreed: epsilon {digits(one.epsilon, 6)} at delta {digits(one.delta, 6)}: {one.name}"
            for one in self.agreements
        ]
        if self.agreements:
            total = f"epsilon {digits(self.epsilon_total, 6)} at delta {owner.delta:g}"
            lines.append(f"  together: {total}, whatever decided on later ones: the least limit that affords them all")
        lines.append(f"  of epsilon {owner.epsilon:g} at delta {owner.delta:g} there is left: {left}")
        if self.exceeded:
            lines.append("  more is agreed than these limits now allow: agreements that are under way stop")
        return "\n".join(lines)


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
    total = Total(found, agreements)
    return OwnerLimits(found, agreements, total.epsilon, *total.left, total.exceeded)
