"""For a trial on one machine: what each administrator does once, in kits of `nvflare poc prepare`.

    python write_kits.py poc/example_project/prod_00

Server and sites get leave to make this project's classes, and its module. Each site keeps its log to itself, gets
limits of an owner of its own, beside the kits (owners/SITE), and says where its records are. In a deployment each does
this for itself.
"""

import json
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMITS = "folder: {folder}\nepsilon: 8\ndelta: 1e-4\nmin_records: 200\nnum_classes: 10\n"


def main(kits):
    for startup in sorted(kits.glob("*/startup")):
        kit, name = startup.parent, startup.parent.name
        if (startup / "fed_server.json").exists():
            allow(kit, "PrivateController")
        elif (startup / "fed_client.json").exists():
            allow(kit, "PrivateExecutor")
            keep_log(kit)
            own(kit, name, kits.resolve().parents[2] / "owners")
        else:
            continue  # an administrator's
        (kit / "local" / "custom").mkdir(exist_ok=True)
        shutil.copy(HERE / "private" / "task.py", kit / "local" / "custom")
        print(f"written: {kit / 'local'}")


def allow(kit, kind):
    """Add to what the kit has, or to NVFlare's default."""
    path = kit / "local" / "resources.json"
    found = path if path.exists() else path.with_name("resources.json.default")
    values = json.loads(found.read_text())
    wanted = [f"dpfl_plugin.adapters.nvflare.{kind}", "task.Net"]
    values["class_allow_list"] += [one for one in wanted if one not in values["class_allow_list"]]
    path.write_text(json.dumps(values, indent=2))


def keep_log(kit):
    """NVFlare would send it to the server."""
    path = kit / "local" / "resources.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"allow_log_streaming": False}, indent=2))


def own(kit, site, owners):
    owners.mkdir(exist_ok=True)
    limits = owners / f"{site}.yaml"
    limits.write_text(LIMITS.format(folder=owners / site))
    limits.chmod(0o600)
    says = {"limits": str(limits), "records": "task:train_data"}
    (kit / "local" / "dpfl.json").write_text(json.dumps(says, indent=2))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not list(Path(sys.argv[1]).glob("*/startup")):
        sys.exit(f"{__doc__}\n{' '.join(sys.argv[1:]) or 'no folder'}: no kits are there (FOLDER/NAME/startup).")
    main(Path(sys.argv[1]))
