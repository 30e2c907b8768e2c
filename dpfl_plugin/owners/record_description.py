"""Which records a server may have counted: those of one description, the first.

Numbers of records are exact, and no epsilon covers them. A server that may describe the data again and again, each time
with another column that tells silos apart, say, gets a histogram of any column; and one that describes them wrongly on
purpose hears which check of the records failed. So the first description that records are read by is kept beside the
owner's lifetime ledger, as `NAME.counted.json`, and they are not read by any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from dpfl_plugin.config.schema import Config
from dpfl_plugin.errors import LimitError
from dpfl_plugin.owners.limits import Limits, own_folder
from dpfl_plugin.runs.folder import sync_folder, to_json


@dataclass(frozen=True, slots=True)
class Description:
    """All by which numbers of records are decided, as JSON."""

    text: str

    @classmethod
    def of(cls, config: Config, base: Path) -> Description:
        """Of the data of a run that is asked for by a file in the folder ``base``."""
        data = config.data.model_dump(mode="json", exclude={"memory_map"})
        # Where silos are given, a seed draws who is tested on, and not how many.
        seed = None if config.data.partition.name == "natural" else config.public_seed
        return cls(json.dumps({"data": data, "seed": seed, "base": str(base)}, sort_keys=True))

    def check(self, limits: Limits) -> None:
        """Compare with the description that was kept, if there is one.

        Raises:
            LimitError: it is another one, or cannot be read.
        """
        path = _path(limits)
        try:
            kept = json.loads(path.read_text())["sha256"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LimitError(
                f"{path} cannot be read ({error}): it says what numbers of records were given. Restore it from a copy.",
                "it is not known which numbers of records were given before",
            ) from error
        if kept != self._sha256:
            limits.refuse(
                "numbers of records were given for another description of the data (data:, the folder of the "
                "configuration, and its seed where that deals records to silos), and another one would reveal more",
                f"describe the data as before; or, if you are their owner, remove {path}",
            )

    def keep(self, limits: Limits) -> None:
        """Keep it, if it is the first; on disk when it returns.

        Raises:
            LimitError: it is not.
        """
        own_folder(limits.folder, limits.source)
        path = _path(limits)
        if not path.exists():
            temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
            temporary.unlink(missing_ok=True)  # of a process of this number that crashed
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(to_json({"sha256": self._sha256, **json.loads(self.text)}))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another rank of the owner's was first
                os.link(temporary, path)
            temporary.unlink()
            sync_folder(path.parent)
        self.check(limits)

    @property
    def _sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def _path(limits: Limits) -> Path:
    return limits.folder / f"{limits.data}.counted.json"
