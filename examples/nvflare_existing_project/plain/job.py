"""Digits at hospitals that each see other digits, in NVFlare's simulator."""

import os

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe.sim_env import SimEnv
from task import NUM_SILOS, accuracy

WORKSPACE = os.path.abspath(os.environ.get("WORKSPACE", "workspace"))


def main():
    recipe = FedAvgRecipe(
        name="digits",
        model={"class_path": "task.Net", "args": {}},
        min_clients=NUM_SILOS,
        num_rounds=10,
        train_script="client.py",
        server_expected_format="pytorch",
    )
    for add in (recipe.add_server_file, recipe.add_client_file):
        add("task.py")
    run = recipe.execute(SimEnv(num_clients=NUM_SILOS, workspace_root=WORKSPACE))
    result = run.get_result()
    print(f"accuracy after 10 rounds: {accuracy(f'{result}/server/simulate_job/app_server/FL_global_model.pt'):.3f}")


if __name__ == "__main__":
    main()
