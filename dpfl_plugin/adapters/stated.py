"""What a silo's privacy statement says: of this silo alone, and of what its own ledger proves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dpfl_plugin.adapters.agreement import Agreement
from dpfl_plugin.config.schema import Config
from dpfl_plugin.owners.limits import Surroundings
from dpfl_plugin.privacy.account import PrivacyAccount
from dpfl_plugin.runs.build import Parts
from dpfl_plugin.runs.statement import statement

MEASUREMENTS: Final = (
    "What the platform itself sends is not covered by any epsilon here: losses, accuracies and numbers of records that "
    "a silo reports, and whatever else is sent beside the uploads.",
)
PUBLIC_DRAWS: Final = (
    "Who takes part is chosen by the server or its platform, in public: no amplification is claimed from it, and a "
    "third party is granted what the server is.",
    "The numbers are those of this silo alone, and of this folder: what the records were used for elsewhere is not in "
    "them. Of a person with records at several silos, or with several here, they add up.",
)


def stated(
    agreement: Agreement,
    id: int,
    config: Config,
    parts: Parts,
    notes: Sequence[str],
    surroundings: Surroundings,
    account: PrivacyAccount,
    ahead: int,
) -> dict[str, Any]:
    """What `ledger.json` is to say of a silo.

    Args:
        config: as the silo sees it. notes: of its ledger. surroundings: see `Silo`.
        account: of what is stated; the last ``ahead`` of its rounds are counted in advance.
    """
    schema = agreement.by_schema
    run = {
        "name": f"{config.name}, silo {id}",
        "id": agreement.run,
        "num_silos": agreement.num_silos,
        "rounds": len({entry.round for entry in account.ledger.tally.entries()}) - ahead,
        "status": "running",
        "reason": "",
    }
    said = statement(
        config,
        account,
        rules=parts.rules,
        accountant=parts.accountant,
        run=run,
        caveats=(
            *parts.caveats,
            *(() if schema is None else schema.caveats),
            *PUBLIC_DRAWS,
        ),
        notes=notes,
        measurements=MEASUREMENTS,
        draws=False,
        held_by="site" if surroundings == "deployment" else "simulation",
        public_schema=None if schema is None else not schema.drafted,
    )
    said["silos"] = [{**row, "rounds": run["rounds"]} for row in said["silos"] if row["silo"] == id]
    return said
