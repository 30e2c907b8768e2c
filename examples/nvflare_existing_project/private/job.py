"""Digits at hospitals that each see other digits, in NVFlare's simulator."""

import os

from nvflare.recipe.sim_env import SimEnv
from task import NUM_SILOS, accuracy

from dpfl_plugin.adapters.nvflare import PrivateRecipe

WORKSPACE = os.path.abspath(os.environ.get("WORKSPACE", "workspace"))


def main():
    recipe = PrivateRecipe(
        name="digits",
        model={"class_path": "task.Net", "args": {}},
        silos=NUM_SILOS,
        records="task:train_data",
        folder=os.environ.get("SILOS", "~/.dpfl/digits"),
        settings={
            "rounds": 10,
            "algorithm": {"name": "scaffold", "local_steps": 10, "local_lr": 1.0},
            "privacy": {"epsilon": 8.0, "delta": 1e-4, "record_rate": 0.2},
        },
    )
    for add in (recipe.add_server_file, recipe.add_client_file):
        add("task.py")
    run = recipe.execute(SimEnv(num_clients=NUM_SILOS, workspace_root=WORKSPACE))
    result = run.get_result()
    print(f"accuracy after 10 rounds: {accuracy(f'{result}/server/simulate_job/app_server/FL_global_model.pt'):.3f}")


if __name__ == "__main__":
    main()
