"""`python submit.py KIT SETTINGS FOLDER`: submits one job by the kit of a lead, and waits for its end."""

import json
import sys

from nvflare.recipe.prod_env import ProdEnv

from dpfl_plugin.adapters.nvflare import PrivateRecipe

if __name__ == "__main__":
    kit, settings, folder = sys.argv[1:]
    recipe = PrivateRecipe(
        model={"class_path": "project.Net", "args": {}}, silos=3, folder=folder, settings=json.loads(settings)
    )
    run = recipe.run(ProdEnv(startup_kit_location=kit, username="lead@org.org", login_timeout=30))
    result = run.get_result(timeout=240)
    print("ended:", run.get_status(), result)
