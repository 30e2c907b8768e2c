"""Compare golden rows with what the code gives now, or write them anew."""

from __future__ import annotations

import argparse
import sys
import time

from tests.goldens import rows
from tests.goldens.files import FILES, made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the rows that changed")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"rows, or files: {', '.join(FILES)} (default: all)")
    asked = parser.parse_args()
    known = {name: (file, name) for file in FILES for name in FILES[file].NAMES}
    if unknown := [name for name in asked.names if name not in {*known, *FILES}]:
        parser.error(f"no such row or file: {', '.join(unknown)}")
    changed = 0
    for file, module in FILES.items():
        before = rows.read(file)
        after = {name: row for name, row in before.items() if name in module.NAMES}
        names = [name for name in module.NAMES if not asked.names or {name, file} & {*asked.names}]
        try:
            for name, row in made(file, names):
                difference = rows.difference(file, name, before.get(name), row)
                if difference is not None:
                    changed += 1
                    print(f"{file}: new: {name}" if name not in before else difference.partition("\nIf")[0], flush=True)
                    after[name] = row
            for name in before.keys() - after.keys():
                print(f"{file}: gone: {name}")
        finally:  # what was made is kept, whatever the next one fails by
            if asked.write:
                rows.write(file, {name: after[name] for name in module.NAMES if name in after})
    print(f"{changed} rows {'written' if asked.write else 'changed'}, in {time.process_time():.0f} s")
    return int(bool(changed) and not asked.write)


if __name__ == "__main__":
    sys.exit(main())
