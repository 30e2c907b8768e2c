"""`python submit.py KIT SETTINGS FOLDER [ROUNDS]`: submits a job by an administrator's kit, and waits for its end.

With ROUNDS its user aborts it after so many. With a file of NVFlare's log in their place, it asks the sites to send it.
"""

import json
import sys
import time
from pathlib import Path

from nvflare.recipe.prod_env import ProdEnv

from dpfl_plugin.adapters.nvflare import PrivateRecipe

if __name__ == "__main__":
    kit, settings, folder, *more = sys.argv[1:]
    rounds, logs = [one for one in more if one.isdigit()], [one for one in more if not one.isdigit()]
    recipe = PrivateRecipe(
        model={"class_path": "project.Net", "args": {}}, silos=3, folder=folder, settings=json.loads(settings)
    )
    if logs:
        recipe.enable_log_streaming(*logs)
    run = recipe.run(ProdEnv(startup_kit_location=kit, username="lead@org.org", login_timeout=30))
    summary = Path(folder) / "server" / "summary.json"
    while rounds and not (summary.exists() and json.loads(summary.read_text())["rounds"] >= int(rounds[0])):
        time.sleep(0.1)
    if rounds:
        run.abort()
    result = run.get_result(timeout=240)
    print("ended:", run.get_status(), result)
