"""`python job.py SETTINGS FOLDER WORKSPACE`: one job in NVFlare's simulator."""

import json
import sys

from nvflare.recipe.sim_env import SimEnv
from repeatable import RepeatableRecipe

if __name__ == "__main__":
    settings, folder, workspace = sys.argv[1:]
    recipe = RepeatableRecipe(
        name="job",
        model={"class_path": "project.Net", "args": {"hidden": 5}},
        silos=3,
        records="project:records",
        folder=folder,
        settings=json.loads(settings),
    )
    recipe.add_server_file("project.py")
    recipe.add_client_file("project.py")
    run = recipe.execute(SimEnv(num_clients=3, workspace_root=workspace))
    print("result:", run.get_result())
