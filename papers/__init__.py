"""Published experiments: what papers show, how it is run here, and how the two compare; what their theorems plan.

How a figure or table is added:

1. Its configurations go to ``configs/PAPER/*.yaml`` (a sweep, or a file with ``variants``).
2. An `items.Item` in ``PAPER.py`` names them as its `items.Part`s: which keys make rows and columns of panels, what is
   on the horizontal axis (``against``: "round", or a key such as "privacy.epsilon"), and what ``--quick`` changes.
   Published numbers are `items.Cell`s, with their place in the paper; a published ordering is an `items.Claim`. What
   numbers of all runs show goes to ``found``, of quick ones to ``found_quick``, what holds anyway to ``why``. What no
   run is needed for (epsilons, planned rounds) is ``computed``: a function that returns a header and rows.
3. The paper is named in `items.PAPERS`.

``python -m papers PAPER --figure N --quick`` runs it; ``--keep`` keeps the numbers in ``kept/`` and writes all pages of
docs/papers/ anew from what is kept: nothing of a page is typed but `Item` itself.
"""
