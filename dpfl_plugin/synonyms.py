"""Words that papers and other libraries have for a key of a configuration, and where they mean something else by it.

A number that is taken over under our key's name may be wrong without any error: a standard deviation is not a noise
multiplier, and an epoch is not a step. So the message for an unknown key names ours, and says how it differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dpfl_plugin.errors import closest, nearest

NOISE: Final = (
    "It is the noise's standard deviation divided by the L2 sensitivity, not the standard deviation itself. The "
    "sensitivity is 2 clip_norm for replace-one neighbours (sampler: fixed), clip_norm for add-or-remove (poisson)."
)
RECORD_RATE: Final = (
    "It is the share of a silo's records in the batch of a step; the share of silos in a round is silo_rate."
)
SILO_RATE: Final = "It is the share of silos in a round, in (0, 1], not their number."
STEPS: Final = (
    "It counts gradient steps in a round, not passes over the records: a pass is about 1 / record_rate of them."
)

# {keys, of which that one counts which is known where the word was given, else the first:
#  (how they differ from what others call so, what others call them)}
_TABLE: Final[dict[tuple[str, ...], tuple[str, str]]] = {
    ("privacy.noise_multiplier",): (NOISE, "sigma sigma_g noise_std noise_stddev noise_scale noise_level stddev std"),
    ("privacy.epsilon",): (
        "It bounds all rounds together.",
        "target_epsilon eps max_epsilon dp_epsilon total_epsilon epsilon_budget privacy_budget budget",
    ),
    ("privacy.delta",): ("", "target_delta dp_delta"),
    ("privacy.clip_norm",): (
        "",
        "max_grad_norm l2_norm_clip clipping_norm clip_threshold clipping_threshold clip_bound clipping_bound max_norm "
        "l2_clip grad_clip gradient_clipping clip_value",
    ),
    ("privacy.record_rate",): (
        RECORD_RATE,
        "sample_rate sampling_rate subsampling_rate subsample_rate sampling_probability sampling_ratio q",
    ),
    ("privacy.batch_size",): ("", "batch minibatch_size mini_batch_size local_batch_size lot_size"),
    ("privacy.neighbouring",): ("", "adjacency neighboring neighbouring_relation neighboring_relation"),
    ("privacy.sampler",): ("", "sampling poisson_sampling subsampling"),
    ("privacy.unit",): ("", "granularity privacy_unit privacy_level dp_level level"),
    ("privacy.randomness",): ("", "secure_mode secure_rng noise_seed"),
    ("rounds",): (
        "",
        "num_rounds n_rounds max_rounds comm_round comm_rounds communication_rounds global_rounds global_epochs "
        "num_server_rounds t",
    ),
    ("algorithm.local_steps",): (
        STEPS,
        "epochs epoch num_epochs n_epochs local_epochs local_epoch client_epochs inner_epochs k local_updates "
        "local_iterations num_local_steps",
    ),
    ("algorithm.local_lr", "algorithm.lr"): (
        "",
        "lr learning_rate local_learning_rate client_lr client_learning_rate step_size stepsize eta eta_l",
    ),
    ("algorithm.server_lr", "algorithm.lr"): ("", "server_learning_rate global_lr eta_g"),
    ("algorithm.server_optimizer",): (
        "It is the server's: silos take plain gradient steps.",
        "optimizer optimiser momentum",
    ),
    ("silo_rate",): (
        SILO_RATE,
        "client_rate client_fraction fraction_fit fraction_train participation_rate clients_per_round "
        "num_clients_per_round client_num_per_round cohort_size",
    ),
    ("silo_weights",): ("", "client_weights weighting"),
    ("l2",): (
        "Its gradient, l2 times the model, is added after clipping and noise.",
        "weight_decay l2_regularization l2_regularisation l2_penalty regularization regularisation",
    ),
    ("seed",): ("", "random_state random_seed rng_seed"),
    ("class_weights",): ("", "class_weight pos_weight sample_weight"),
    ("loss",): ("", "criterion loss_fn loss_function"),
    ("model",): ("", "net network architecture"),
    ("model.hidden",): ("", "hidden_size hidden_sizes hidden_units hidden_dim hidden_dims layers"),
    ("runtime.device",): ("", "gpu cuda use_gpu"),
    ("out",): ("", "output_dir out_dir save_dir"),
    ("data.num_silos",): (
        "",
        "num_clients n_clients number_of_clients client_num_in_total num_parties num_sites num_partitions",
    ),
    ("data.dataset",): ("", "name dataset_name data_name"),
    ("data.test_fraction",): ("", "test_size test_split test_ratio"),
    ("data.partition",): ("", "partitioner partition_method"),
    ("data.dataset.label_column", "label"): ("", "target target_column label_col labels"),
    ("data.dataset.silo_column", "silo"): ("", "site client site_column client_column"),
    ("data.dataset.person_column", "person"): ("", "patient patient_id subject subject_id user user_id person_id"),
    ("data.dataset.ignore_columns",): ("", "drop_columns drop exclude"),
}
ALGORITHMS: Final = {
    "fedadam": "algorithm: fedavg with server_optimizer: adam",
    "fedyogi": "algorithm: fedavg with server_optimizer: yogi",
    "fedadagrad": "algorithm: fedavg with server_optimizer: adagrad",
    "fedavgm": "algorithm: fedavg with server_optimizer: momentum",
    "fedopt": "algorithm: fedavg with a server_optimizer",
    "fedexp": "algorithm: fedavg with server_optimizer: fedexp",
    "dp_fedavg": "algorithm: fedavg, which is private by the keys of privacy",
    "dp_fedsgd": "algorithm: fedsgd, which is private by the keys of privacy",
    "dp_scaffold": "algorithm: scaffold, which is private by the keys of privacy",
    "dp_sgd": "algorithm: mb_sgd, which is private by the keys of privacy",
}
"""What others call an algorithm, and how a configuration names it."""
SYNONYMS: Final = {word: keys for keys, (_, words) in _TABLE.items() for word in words.split()}
_ELSEWHERE: Final = {keys[0].rpartition(".")[2]: keys for keys in _TABLE}


def meant(word: str, known: Iterable[str], where: str | None = "") -> str:
    """ " (did you mean 'x'? How it differs.)", or nothing.

    Args:
        word: the unknown key. known: the keys that there are in its place.
        where: that place, as "privacy"; "" for the top of a configuration, None for a place of its own.
    """
    known = list(known)
    said = word.lower().replace("-", "_")
    keys = SYNONYMS.get(said) or _ELSEWHERE.get(said)
    if keys is None and where == "":
        keys = _ELSEWHERE.get(closest(word, [*_ELSEWHERE, *known]) or "")
    if keys is None:
        return nearest(word, known)
    name = next((key for key in map(_last, keys) if key in known), keys[0])
    if name not in known and where in (None, name.rpartition(".")[0]):  # the plugin there has no such option
        return nearest(word, known)
    top = ", at the top level" if name not in known and "." not in name else ""
    note = _TABLE[keys][0] if said in SYNONYMS else ""
    return f" (did you mean {name!r}{top}?{' ' * bool(note)}{note})"


def meant_plugin(group: str, name: str, known: Iterable[str]) -> str:
    """As `meant`, for the name of a plugin."""
    ours = ALGORITHMS.get(name.lower().replace("-", "_")) if group == "algorithms" else None
    return nearest(name, known) if ours is None else f" (did you mean {ours}?)"


def _last(key: str) -> str:
    return key.rpartition(".")[2]
