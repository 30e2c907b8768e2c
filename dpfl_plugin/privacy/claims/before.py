"""What was spent before a run, by the runs that share its ledger."""

from __future__ import annotations

from dpfl_plugin.privacy.claims.base import Claims
from dpfl_plugin.privacy.views import server_view


class Before(Claims):
    """What is claimed of earlier runs alone; see `Claims`."""

    def held(self) -> float:
        """Epsilon of what earlier runs released, this run apart, in the view that the budget bounds."""
        spec, prior = self.book.spec, self.book.earlier
        earlier = prior.certain if spec.view == "third_party" else prior.realised
        return server_view((), self.accountant, spec.delta, earlier=earlier).epsilon
