"""Privacy bugs that somebody could write, as replacements in the real source; each must turn a test red.

A mutant names everyday tests that should notice it, the most likely first. Text that is not found exactly once is an
error, so that the list follows the code.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes:
        bug: what it breaks, in words.
        file: in the package; ``old``: its text, found once; ``new``: what takes its place.
        tests: everyday tests that should notice.
    """

    name: str
    bug: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, source: str) -> str:
        """``source`` with the bug.

        Raises:
            ValueError: the text is not there exactly once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"mutant {self.name}: {self.old!r} is {source.count(self.old)} times in {self.file}")
        return source.replace(self.old, self.new)


def suites(mutants: Iterable[Mutant]) -> list[tuple[str, ...]]:
    """What has to be green without a mutation: the tests that mutants name, those of a file together."""
    named = sorted({test for mutant in mutants for test in mutant.tests})
    return [tuple(group) for _, group in itertools.groupby(named, lambda test: test.partition("::")[0])]


ORACLE = "tests/test_oracle.py"
ENGINES = "tests/gradients/test_engines.py"
STREAMS = "tests/core/test_streams.py"
CLIP = "tests/privacy/test_clipping.py"
LEDGER = "tests/privacy/test_ledger.py"
VIEWS = "tests/privacy/test_views.py"
PLD = "tests/privacy/test_pld.py"
ACCOUNTANTS = "tests/privacy/test_accountants.py"
CONTRACT = "tests/privacy/test_accountant_contract.py"
BUDGET = "tests/privacy/test_budget.py"
ACCOUNT = "tests/training/test_accounting.py"
IN_PROCESS = "tests/runtimes/test_in_process.py"
SCAFFOLD = "tests/algorithms/test_scaffold.py"
RESUME = "tests/cli/test_resume.py"
SHARED = "tests/cli/test_shared_ledger.py"
PRIOR = "tests/privacy/test_prior.py"
PLAN_TESTS = "tests/cli/test_plan.py"
RUN = "tests/cli/test_run.py"
NOISE = "tests/conformance/test_noise.py"
BATCHES = "tests/conformance/test_batches.py"
SENSITIVITY = "tests/conformance/test_sensitivity.py"
CHARGES = "tests/conformance/test_charges.py"

MECHANISMS = (
    Mutant(
        "halved-noise",
        "half of the noise that is charged",
        "privacy/mechanisms.py",
        "alpha=sensitivity * self.noise_multiplier)",
        "alpha=0.5 * sensitivity * self.noise_multiplier)",
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "noise-lost",
        "noise is added to a copy",
        "privacy/mechanisms.py",
        "value.add_(normals",
        "value.add(normals",
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "noise-of-a-variance",
        "noise_multiplier is taken for a variance",
        "privacy/mechanisms.py",
        "alpha=sensitivity * self.noise_multiplier)",
        "alpha=sensitivity * self.noise_multiplier**0.5)",
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "noise-cut-off",
        "noise without tails: beyond 4 standard deviations a release would be certain of its record",
        "privacy/mechanisms.py",
        "rng.standard_normal(value.numel())",
        "rng.standard_normal(value.numel()).clip(-4, 4)",
        (NOISE + "::test_tails_of_the_mechanism",),
    ),
    Mutant(
        "noise-uniform",
        "uniform noise of the right standard deviation",
        "privacy/mechanisms.py",
        "rng.standard_normal(value.numel())",
        "rng.uniform(-(3**0.5), 3**0.5, value.numel())",
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "noise-of-a-32-bit-seed",
        "noise from torch's generator, which keeps 32 bits of its seed, in float32",
        "privacy/mechanisms.py",
        "torch.from_numpy(rng.standard_normal(value.numel()))",
        "torch.randn(value.numel(), generator=torch.Generator().manual_seed(int(rng.integers(2**32))))",
        (ORACLE + "::test_a_silo_release_is_clipped_noised_and_charged_once",),
    ),
    Mutant(
        "noise-in-proportion",
        "less noise on small values",
        "privacy/mechanisms.py",
        "value.add_(normals.to(value), alpha=sensitivity * self.noise_multiplier)",
        "value.add_(normals.to(value) * value.abs().clamp(max=1.0), alpha=sensitivity * self.noise_multiplier)",
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "noise-overstated",
        "a release is charged with twice the noise that it got",
        "privacy/mechanisms.py",
        "noise_multiplier=self.noise_multiplier, sampler=sampler",
        "noise_multiplier=2 * self.noise_multiplier, sampler=sampler",
        (ORACLE + "::test_a_charge_for_each_silo_says_what_was_done",),
    ),
    Mutant(
        "unit-forgotten",
        "a silo's release is charged as if it protected a record",
        "privacy/mechanisms.py",
        "neighbouring=neighbouring, unit=unit",
        'neighbouring=neighbouring, unit="record"',
        (ORACLE + "::test_a_silo_release_is_clipped_noised_and_charged_once",),
    ),
)

STREAM_KEYS = (
    Mutant(
        "noise-reused-over-steps",
        "all steps of a round have the same noise",
        "oracle.py",
        'rules.mechanism(out, sensitivity, stream.seek(draw.key("noise", silo, step)))',
        'rules.mechanism(out, sensitivity, stream.seek(draw.key("noise", silo, 0)))',
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "noise-reused-over-rounds",
        "all rounds have the same noise and batches",
        "oracle.py",
        "stream_key(self.seed, purpose, self.round, silo",
        "stream_key(self.seed, purpose, 0, silo",
        (ORACLE + "::test_noise_is_independent_between_silos_steps_and_rounds",),
    ),
    Mutant(
        "batch-drawn-once",
        "one batch for all steps of a round",
        "oracle.py",
        'stream.seek(draw.key("batch", silo, step))',
        'stream.seek(draw.key("batch", silo, 0))',
        (ORACLE + "::test_every_step_of_a_round_has_a_batch_of_its_own",),
    ),
    Mutant(
        "shared-silo-seeds",
        "all silos have the same noise",
        "oracle.py",
        "stream_key(self.seed, purpose, self.round, silo, step",
        "stream_key(self.seed, purpose, self.round, 0, step",
        (ORACLE + "::test_noise_is_independent_between_silos_steps_and_rounds",),
    ),
    Mutant(
        "shared-silo-seeds-at-silo-level",
        "all silos of a stack have the same noise in their releases",
        "oracle.py",
        'self._stream.seek(self._draw.key("noise", silo, step))',
        'self._stream.seek(self._draw.key("noise", self._ids[0], step))',
        (ORACLE + "::test_silos_of_a_stack_release_independent_noise",),
    ),
    Mutant(
        "attempt-not-in-the-key",
        "a round that is charged again as fresh has its old noise, around other values",
        "oracle.py",
        "silo, step, self.attempt, self.run)",
        "silo, step, 0, self.run)",
        (ORACLE + "::test_the_same_round_again_gives_the_same_bits_and_another_attempt_others",),
    ),
    Mutant(
        "run-not-in-the-key",
        "runs of one seed share noise: it cancels in their difference",
        "oracle.py",
        "silo, step, self.attempt, self.run)",
        'silo, step, self.attempt, "")',
        (ORACLE + "::test_other_seeds_rounds_attempts_and_runs_share_neither_noise_nor_batches",),
    ),
    Mutant(
        "records-not-in-the-run",
        "the same configuration on changed records has the same noise",
        "training/session.py",
        "noise = noise_name(config, parts.data_sha256, parts.noise_multiplier)",
        'noise = noise_name(config, "", parts.noise_multiplier)',
        (RUN + "::test_changed_records_have_noise_of_their_own",),
    ),
    Mutant(
        "purpose-not-in-the-key",
        "noise and batches come from the same stream",
        "core/streams.py",
        'struct.pack("<6q", seed, PURPOSES[purpose], round',
        'struct.pack("<6q", seed, 1, round',
        (STREAMS + "::test_every_part_of_a_name_counts",),
    ),
    Mutant(
        "seed-of-32-bits",
        "seeds that agree in their low 32 bits share everything",
        "core/streams.py",
        'struct.pack("<6q", seed,',
        'struct.pack("<6q", seed % 2**32,',
        (STREAMS + "::test_seeds_that_agree_in_their_low_32_bits_differ",),
    ),
    Mutant(
        "key-of-32-bits",
        "32 bits of a stream's key are used: of 100,000 streams two are likely the same",
        "core/streams.py",
        'np.frombuffer(key, dtype="<u8").astype(np.uint64)',
        "np.random.SeedSequence(int.from_bytes(key[:4])).generate_state(4, np.uint64)",
        (STREAMS + "::test_every_byte_of_a_key_counts",),
    ),
    Mutant(
        "half-used-stream",
        "a stream goes on where the last one ended",
        "core/streams.py",
        "        self._bits.state = self._state\n",
        "",
        (STREAMS + "::test_a_stream_is_named_by_its_key_and_nothing_else",),
    ),
)

SECURE = (
    Mutant(
        "secure-seeded",
        "secure runs have the noise of their seed",
        "oracle.py",
        "SecureStream() if rules.secure else Stream()",
        "Stream()",
        (ORACLE + "::test_secure_noise_is_another_each_time_and_does_not_depend_on_the_seed",),
    ),
    Mutant(
        "secure-key-of-32-bits",
        "the key of secure noise is 32 bits of the operating system's",
        "core/streams.py",
        "os.urandom(16)",
        "os.urandom(4)",
        (STREAMS + "::test_secure_bits_are_those_of_aes_in_counter_mode",),
    ),
    Mutant(
        "secure-key-of-the-process",
        "all secure streams of a process have one key: silos share their noise",
        "core/streams.py",
        "key=int.from_bytes(os.urandom(16), ",
        "key=int.from_bytes(os.getpid().to_bytes(16), ",
        (STREAMS + "::test_secure_streams_never_repeat_themselves_or_each_other",),
    ),
    Mutant(
        "sum-of-four-in-quarters",
        "the sum of four normals is divided by four: half of the noise",
        "core/streams.py",
        "        total *= 0.5\n",
        "        total *= 0.25\n",
        (STREAMS + "::test_secure_normals_are_standard_normals",),
    ),
    Mutant(
        "sum-of-four-not-halved",
        "the sum of four normals is not divided by two",
        "core/streams.py",
        "        total *= 0.5\n",
        "",
        (STREAMS + "::test_secure_normals_are_standard_normals",),
    ),
    Mutant(
        "sum-of-four-of-one",
        "the sum of four is four times one normal, halved twice: as few values as a single one",
        "core/streams.py",
        "            total += super().standard_normal(size, dtype)\n        total *= 0.5\n",
        "            total += total / 3\n        total *= 27 / 64\n",
        (STREAMS + "::test_a_secure_normal_is_half_the_sum_of_four",),
    ),
    Mutant(
        "secure-noise-of-an-old-name",
        "secure noise has its configuration's name in the ledger: what is released again passes for a repetition",
        "training/session.py",
        "bits = secrets.token_hex(6) if parts.rules.secure else noise",
        "bits = noise",
        (RESUME + "::test_secure_runs_of_one_seed_are_two_releases",),
    ),
)

CLIPPING = (
    Mutant(
        "clip-on-the-batch-mean",
        "every gradient is scaled by the norm of the batch's mean",
        "gradients/vmap.py",
        "norms = [_norms(part) for part in parts]",
        "norms = [_norms(part.mean(dim=0, keepdim=True)).expand(len(part)).clone() for part in parts]",
        (ENGINES + "::test_both_engines_are_the_definition",),
    ),
    Mutant(
        "clip-after-averaging",
        "the sum of plain gradients is clipped, not each gradient",
        "oracle.py",
        "            self._engine.clipped_sum(y, batch, bounds, out)\n",
        "            self._engine.clipped_sum(y, batch, math.inf, out)\n"
        "            out.mul_(1 / max(1.0, float(out.norm()) / (rules.clip_norm * max(1, len(batch)))))\n",
        (ORACLE + "::test_without_noise_the_mean_over_the_drawn_batch",),
    ),
    Mutant(
        "noise-before-clipping",
        "the sum is clipped once more after the noise: it loses most of it",
        "oracle.py",
        'stream.seek(draw.key("noise", silo, step)))\n        out.div_(divisor)',
        'stream.seek(draw.key("noise", silo, step)))\n'
        "            out.mul_(1 / max(1.0, float(out.norm()) / (rules.clip_norm * len(batch))))\n"
        "        out.div_(divisor)",
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "silo-noise-before-clipping",
        "a silo's update is clipped after the noise",
        "oracle.py",
        "        self._released.append(out.clone())",
        "            out[row] /= max(1.0, float(out[row].norm()) / rules.clip_norm)\n"
        "        self._released.append(out.clone())",
        (ORACLE + "::test_a_silo_release_is_clipped_noised_and_charged_once",),
    ),
    Mutant(
        "silo-not-clipped",
        "a silo's update is not clipped",
        "oracle.py",
        "clip_update(out[row], self._bounds, self._layer_sizes)",
        "out[row].nan_to_num_(0.0)",
        (ORACLE + "::test_a_silo_release_is_clipped_noised_and_charged_once",),
    ),
    Mutant(
        "silo-not-finite",
        "a silo's update that is not finite is sent as it is",
        "privacy/clipping.py",
        "        update.zero_()\n        return\n",
        "        return\n",
        (ORACLE + "::test_a_diverged_silo_releases_noise_alone",),
    ),
    Mutant(
        "norm-of-half-the-parameters",
        "the norm leaves out half of the parameters",
        "gradients/vmap.py",
        "norms = [_norms(part) for part in parts]",
        "norms = [_norms(part[:, : (part.shape[1] + 1) // 2]) for part in parts]",
        (ENGINES + "::test_both_engines_are_the_definition",),
    ),
    Mutant(
        "norm-of-the-largest",
        "gradients are clipped by their largest entry",
        "gradients/vmap.py",
        "gradients.norm(dim=1) if",
        "gradients.abs().amax(dim=1) if",
        (ENGINES + "::test_both_engines_are_the_definition",),
    ),
    Mutant(
        "norm-too-small",
        "norms of millions of parameters are added up one by one in float32 and come out too small",
        "gradients/vmap.py",
        "<= 2**16",
        "<= 2**40",
        (ENGINES + "::test_norms_of_long_gradients_do_not_come_out_small",),
    ),
    Mutant(
        "norm-without-bias",
        "the closed form forgets the bias in a gradient's norm",
        "gradients/closed_form.py",
        "(1.0 if self._bias else 0.0)",
        "0.0",
        (ENGINES + "::test_both_engines_are_the_definition",),
    ),
    Mutant(
        "norm-without-root",
        "the closed form divides by the squared norm's root of the features only",
        "gradients/closed_form.py",
        "norms = (residuals.square().sum(dim=1) * batch.constants).sqrt_()\n        residuals.mul_",
        "norms = residuals.square().sum(dim=1).sqrt_()\n        residuals.mul_",
        (ENGINES + "::test_both_engines_are_the_definition",),
    ),
    Mutant(
        "not-finite-kept",
        "an infinite gradient counts as a large one, unclipped",
        "gradients/vmap.py",
        "gradients[bad] = 0.0\n        for norm in norms:\n            norm[bad] = math.inf",
        "gradients[bad] = torch.nan_to_num(gradients[bad], posinf=1e6, neginf=-1e6)\n"
        "        for norm in norms:\n            norm[bad] = 0.0",
        (ENGINES + "::test_an_example_without_a_finite_gradient_adds_nothing",),
    ),
    Mutant(
        "not-finite-spreads",
        "one broken record turns the closed form's sum into NaN, which tells of it",
        "gradients/closed_form.py",
        "        if not math.isfinite(float(out.sum())):\n",
        "        if False:\n",
        (ENGINES + "::test_an_example_without_a_finite_gradient_adds_nothing",),
    ),
    Mutant(
        "slow-path-unclipped",
        "beside a broken record the closed form clips nobody",
        "gradients/closed_form.py",
        "factors = clip_norm / norms[good].clamp(min=clip_norm)",
        "factors = torch.ones_like(norms[good])",
        (ENGINES + "::test_an_example_without_a_finite_gradient_adds_nothing",),
    ),
    Mutant(
        "clipped-regulariser",
        "the regulariser is clipped with the noisy gradient",
        "oracle.py",
        "return out.add_(y, alpha=self._rules.l2) if self._rules.l2 else out",
        "out.add_(y, alpha=self._rules.l2)\n"
        "        return out / (out.norm(dim=1, keepdim=True) / (3 * self._rules.clip_norm)).clamp(min=1.0)",
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
)

ADAPTING = (
    Mutant(
        "bits-not-noised",
        "the count of gradients within C_i is released without noise",
        "oracle.py",
        'rules.mechanism(count, of_count / w, stream.seek(draw.key("bits", silo, step)))',
        "pass",
        (CLIP + "::test_noise_of_an_adaptive_release",),
    ),
    Mutant(
        "bits-free-of-charge",
        "the gradient has noise for all of the charge, the count comes on top",
        "oracle.py",
        "rules.mechanism(out, of_sum / math.sqrt(1 - w**2),",
        "rules.mechanism(out, of_sum,",
        (CLIP + "::test_the_worst_neighbours_are_one_over_z_apart",),
    ),
    Mutant(
        "bits-share-the-noise",
        "the count's noise is the first number of the gradient's",
        "oracle.py",
        'stream.seek(draw.key("bits", silo, step))',
        'stream.seek(draw.key("noise", silo, step))',
        (CLIP + "::test_noise_of_an_adaptive_release",),
    ),
    Mutant(
        "bits-not-centred",
        "bits are 0 or 1 while the count's sensitivity is that of bits of 1/2 and -1/2",
        "oracle.py",
        "- len(batch) / 2], dtype=torch.float64)",
        "- rules.sampler.divisor(len(self._silos[row])) / 2], dtype=torch.float64)",
        (CLIP + "::test_the_worst_neighbours_are_one_over_z_apart",),
    ),
    Mutant(
        "bits-over-the-realised-size",
        "the noised count of a Poisson batch is divided by the batch's size, which is private",
        "oracle.py",
        "float(count) / size + 0.5",
        "float(count) / max(1, len(batch)) + 0.5",
        (CLIP + "::test_a_poisson_count_is_divided_by_the_expected_size",),
    ),
    Mutant(
        "noise-of-the-first-norm",
        "noise for the norm at which C_i began, not for C_i",
        "oracle.py",
        "of_sum, of_count = rules.sampler.sensitivity * clip_norm,",
        "of_sum, of_count = rules.sampler.sensitivity * rules.clip_norm,",
        (CLIP + "::test_the_worst_neighbours_are_one_over_z_apart",),
    ),
    Mutant(
        "norms-shared-between-silos",
        "all silos of a stack have the C_i of the last",
        "oracle.py",
        "self.clip_norms[row] = rules.clipping.adapted(clip_norm, float(count) / size + 0.5, rules.clip_norm)",
        "self.clip_norms[:] = [rules.clipping.adapted(clip_norm, float(count) / size + 0.5, rules.clip_norm)]"
        " * self.num_silos",
        (CLIP + "::test_every_stack_gives_the_same_bits",),
    ),
    Mutant(
        "norms-shown-to-the-algorithm",
        "an algorithm sees the C_i of its silos, and may send them",
        "training/host.py",
        " for name, value in self.states.items() if name != CLIP_NORM}",
        " for name, value in self.states.items()}",
        (CLIP + "::test_an_algorithm_sees_nothing_of_it",),
    ),
    Mutant(
        "each-layer-to-c",
        "each of L layers is clipped to C: the whole to C sqrt(L)",
        "privacy/clipping.py",
        "        whole = math.hypot(*shares)\n",
        "        whole = max(shares)\n",
        (CLIP + "::test_each_layer_of_one_example_stays_within_its_bound",),
    ),
    Mutant(
        "bounds-unchecked",
        "a stranger's clipping may bound the layers by more than C together",
        "oracle.py",
        "        if not whole <= self.clip_norm * (1 + 1e-9):\n",
        "        if False:\n",
        (CLIP + "::test_bounds_that_are_more_than_c_together_are_refused",),
    ),
    Mutant(
        "one-good-layer",
        "an example that is broken in one layer is kept in that layer",
        "gradients/vmap.py",
        "bad = ~torch.isfinite(torch.stack(norms)).all(dim=0)",
        "bad = ~torch.isfinite(torch.stack(norms)).any(dim=0)",
        (ENGINES + "::test_an_example_that_is_not_finite_in_one_layer_adds_nothing_in_any",),
    ),
    Mutant(
        "median-charged-as-noised",
        "a clipping norm read from private gradients is charged as if it were public",
        "oracle.py",
        "return replace(event, noise_multiplier=0.0) if self.clipping.measures else event",
        "return event",
        (CLIP + "::test_the_median_is_the_bound_and_no_epsilon_holds",),
    ),
)

SAMPLING = (
    Mutant(
        "sensitivity-of-one",
        "noise for C where a record is replaced: 2C",
        "privacy/samplers.py",
        'neighbouring: Neighbouring = "replace_one"\n    sensitivity: float = 2.0\n\n'
        '    def divisor(self, num_records: int) -> float:\n        """b.',
        'neighbouring: Neighbouring = "replace_one"\n    sensitivity: float = 1.0\n\n'
        '    def divisor(self, num_records: int) -> float:\n        """b.',
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "silo-sensitivity-of-one",
        "noise for C where a silo is replaced: 2C",
        "oracle.py",
        '(2.0 if rules.neighbouring == "replace_one" else 1.0)',
        "1.0",
        (ORACLE + "::test_a_silo_release_is_clipped_noised_and_charged_once",),
    ),
    Mutant(
        "wrong-divisor",
        "sums are divided by R instead of b",
        "oracle.py",
        "divisor = rules.sampler.divisor(len(records))",
        "divisor = float(len(records))",
        (ORACLE + "::test_without_noise_the_mean_over_the_drawn_batch",),
    ),
    Mutant(
        "realised-poisson-size",
        "a Poisson sum is divided by the size of the batch, which depends on the record",
        "oracle.py",
        "divisor = rules.sampler.divisor(len(records))",
        "divisor = float(max(1, len(batch)))",
        (ORACLE + "::test_without_noise_the_mean_over_the_drawn_batch",),
    ),
    Mutant(
        "poisson-as-fixed",
        "Poisson batches are accounted for as fixed ones",
        "privacy/samplers.py",
        'name: SamplerName = "poisson"\n    neighbouring: Neighbouring = "add_or_remove"',
        'name: SamplerName = "fixed"\n    neighbouring: Neighbouring = "replace_one"',
        (ORACLE + "::test_noise_has_the_stated_std_and_is_normal",),
    ),
    Mutant(
        "rate-rounded",
        "q is the nearest tenth instead of b/R",
        "privacy/samplers.py",
        "return self.divisor(num_records) / num_records",
        "return max(0.1, round(self.divisor(num_records) / num_records, 1))",
        (ORACLE + "::test_a_charge_for_each_silo_says_what_was_done",),
    ),
    Mutant(
        "rate-rounded-up",
        "b is the ceiling of s R in the accounting, the floor in the draw",
        "privacy/samplers.py",
        "return self.divisor(num_records) / num_records",
        "return -(-num_records * (self.record_rate or 1.0) // 1) / num_records",
        (CHARGES + "::test_as_many_charges_as_releases",),
    ),
    Mutant(
        "batch-of-one-more",
        "a batch has one record more than is accounted for",
        "privacy/samplers.py",
        "size = int(self.divisor(num_records))",
        "size = min(num_records, int(self.divisor(num_records)) + 1)",
        (ORACLE + "::test_batches_are_fresh_at_every_step_and_silo_and_uniform",),
    ),
    Mutant(
        "with-replacement",
        "a record can be in a batch several times",
        "privacy/samplers.py",
        "replace=False, shuffle=False",
        "replace=True, shuffle=False",
        (ORACLE + "::test_batches_are_fresh_at_every_step_and_silo_and_uniform",),
    ),
    Mutant(
        "first-records",
        "every batch is the first b records",
        "privacy/samplers.py",
        "return rng.choice(num_records, size, replace=False, shuffle=False)",
        "return np.arange(size)",
        (ORACLE + "::test_batches_are_fresh_at_every_step_and_silo_and_uniform",),
    ),
    Mutant(
        "runs-of-records",
        "a batch is b neighbours, from a random place on: each record as often, but not each pair",
        "privacy/samplers.py",
        "return rng.choice(num_records, size, replace=False, shuffle=False)",
        "return (rng.integers(num_records) + np.arange(size)) % num_records",
        (BATCHES + "::test_every_record_and_every_pair_is_drawn_as_often",),
    ),
    Mutant(
        "one-coin-for-all",
        "a Poisson batch is everybody or nobody",
        "privacy/samplers.py",
        "np.flatnonzero(rng.random(num_records) < self.record_rate)",
        "np.flatnonzero(np.full(num_records, rng.random()) < self.record_rate)",
        (ORACLE + "::test_poisson_draws_and_charges_the_same_rate",),
    ),
    Mutant(
        "poisson-never-empty",
        "an empty Poisson batch is drawn again: it has the first record",
        "privacy/samplers.py",
        "return np.flatnonzero(rng.random(num_records) < self.record_rate)",
        "found = np.flatnonzero(rng.random(num_records) < self.record_rate)\n"
        "        return found if len(found) else np.zeros(1, dtype=np.int64)",
        (ORACLE + "::test_an_empty_poisson_batch_still_releases_noise",),
    ),
    Mutant(
        "shares-overlap",
        "neighbouring shares of a silo have a record in common, and are composed in parallel",
        "oracle.py",
        "first, last = (round(part * num_records) for part in share)",
        "first, last = math.floor(share[0] * num_records), math.ceil(share[1] * num_records)",
        (ORACLE + "::test_disjoint_shares_read_disjoint_records",),
    ),
    Mutant(
        "shares-of-every-run-another",
        "the order that shares are cut from depends on the seed: shares of two runs of a ledger overlap",
        "oracle.py",
        "part_of(records, share, silo) for",
        "part_of(records, share, silo + 1000 * draw.seed) for",
        (
            "tests/algorithms/test_localized.py::test_runs_of_every_seed_cut_the_same_shares",
            ORACLE + "::test_a_share_is_the_same_records_for_every_seed_round_attempt_and_run",
        ),
    ),
    Mutant(
        "shares-of-every-round-another",
        "the order that shares are cut from is another in every round: shares of two phases overlap",
        "oracle.py",
        "part_of(records, share, silo) for",
        "part_of(records, share, silo + 1000 * draw.round) for",
        (
            "tests/algorithms/test_localized.py::test_phases_read_disjoint_records_and_half_as_many_each",
            ORACLE + "::test_a_share_is_the_same_records_for_every_seed_round_attempt_and_run",
        ),
    ),
    Mutant(
        "share-not-cut",
        "a round reads all records of a silo, and is charged for a share of them",
        "oracle.py",
        "part_of(records, share, silo) for",
        "records for",
        (
            "tests/algorithms/test_localized.py::test_phases_read_disjoint_records_and_half_as_many_each",
            CHARGES + "::test_as_many_charges_as_releases",
        ),
    ),
    Mutant(
        "points-from-the-noise",
        "the points at which a smoothed loss is taken are drawn from the stream of the noise",
        "oracle.py",
        'self._engine.rng = stream.seek(draw.key("algorithm", silo, step))',
        'self._engine.rng = stream.seek(draw.key("noise", silo, step))',
        (ORACLE + "::test_points_of_a_smoothed_loss_come_from_another_stream_than_the_noise",),
    ),
    Mutant(
        "share-at-the-silos-rate",
        "a share is charged at the rate of the whole silo, which is lower",
        "oracle.py",
        "self._rules.release(self._rules.sampler.rate(len(records))), self._gradient_calls",
        "self._rules.release(self._rules.sampler.rate(round(len(records) / (self._share[1] - self._share[0])))), "
        "self._gradient_calls",
        (ORACLE + "::test_a_share_is_charged_at_its_own_rate",),
    ),
    Mutant(
        "share-planned-at-the-silos-rate",
        "the budget is checked for the rate of the whole silo, which is lower than a share's",
        "oracle.py",
        "self.release(self.sampler.rate(last - first)), num_gradients",
        "self.release(self.sampler.rate(num_records)), num_gradients",
        (ORACLE + "::test_a_share_is_charged_at_its_own_rate",),
    ),
    Mutant(
        "unproven-neighbours",
        "a sampler may be charged under a relation that its theorem does not cover",
        "oracle.py",
        'if self.unit == "record" and self.neighbouring != self.sampler.neighbouring:',
        "if False:",
        (ORACLE + "::test_combinations_that_are_not_proven_are_refused",),
    ),
    Mutant(
        "participants-by-their-records",
        "silos with more records are drawn more often, while a third party is promised S/M",
        "training/planning.py",
        "chosen = draw_participants(self.seed, round, self.setting, eligible) if sampled",
        'chosen = sorted(stream(self.seed, "participants", round).choice(self.setting.num_silos, '
        "self.setting.num_participants, replace=False, p=self.weights).tolist()) if sampled",
        ("tests/training/test_planning.py::test_silos_with_more_records_weigh_more_and_are_drawn_no_more_often",),
    ),
)

CHARGING = (
    Mutant(
        "warm-start-uncharged",
        "warm-up rounds cost nothing",
        "training/host.py",
        "return up, oracle.charges()",
        'return up, [] if plan.phase == "warm-up" else oracle.charges()',
        (SCAFFOLD + "::test_warm_up_is_charged_like_any_round",),
    ),
    Mutant(
        "last-release-uncharged",
        "of a round's releases the last is not charged",
        "oracle.py",
        "self._rules.sampler.rate(len(records))), self._gradient_calls",
        "self._rules.sampler.rate(len(records))), self._gradient_calls - 1",
        (ORACLE + "::test_more_gradients_than_the_plan_said_are_refused",),
    ),
    Mutant(
        "round-charged-as-one",
        "a round's K releases are charged as one",
        "oracle.py",
        "self._rules.sampler.rate(len(records))), self._gradient_calls",
        "self._rules.sampler.rate(len(records))), min(1, self._gradient_calls)",
        (ORACLE + "::test_more_gradients_than_the_plan_said_are_refused",),
    ),
    Mutant(
        "one-gradient-too-many",
        "an algorithm may ask for one gradient more than the budget was checked for",
        "oracle.py",
        "if step >= self._max_gradients:",
        "if step > self._max_gradients:",
        (ORACLE + "::test_more_gradients_than_the_plan_said_are_refused",),
    ),
    Mutant(
        "second-release",
        "a silo may release twice in a round",
        "oracle.py",
        "        if step:\n",
        "        if step > 1:\n",
        (ORACLE + "::test_a_silo_release_is_clipped_noised_and_charged_once",),
    ),
    Mutant(
        "first-silo-charged",
        "of a stack only the first silo is charged",
        "oracle.py",
        "        for silo, records in zip(self._ids, self._silos, strict=True):\n            if self._rules.unit",
        "        for silo, records in zip(self._ids[:1], self._silos):\n            if self._rules.unit",
        (CHARGES + "::test_as_many_charges_as_releases",),
    ),
    Mutant(
        "upload-unchecked",
        "at silo level anything may be sent",
        "oracle.py",
        'if self._rules.unit == "silo":\n            check_released',
        "if False:\n            check_released",
        (ORACLE + "::test_at_silo_level_gradients_are_plain_and_what_was_not_released_may_not_leave",),
    ),
    Mutant(
        "released-in-place",
        "what was released may be changed before it is sent",
        "oracle.py",
        "self._released.append(out.clone())",
        "self._released.append(out)",
        (ORACLE + "::test_what_was_released_may_not_be_changed_before_it_is_sent",),
    ),
    Mutant(
        "stack-mixes-silos",
        "raw gradients of several silos are in an algorithm's hands at once, and one ends up in another's upload",
        "training/host.py",
        'if self._rules.unit == "silo" and len(ids) > 1:',
        "if False:",
        (IN_PROCESS + "::test_at_silo_level_a_stack_never_mixes_silos",),
    ),
    Mutant(
        "rows-unchecked",
        "rows beyond the silos' are answered without a charge",
        "oracle.py",
        "if value.dim() != 2 or value.shape[0] != self.num_silos:",
        "if value.dim() != 2:",
        (ORACLE + "::test_only_a_row_for_each_silo_is_answered",),
    ),
    Mutant(
        "records-differentiable",
        "derivatives flow back from a noisy gradient to the records",
        "oracle.py",
        "y = y.detach()  # with no_grad:",
        "torch.set_grad_enabled(True)  # with no_grad:",
        (ORACLE + "::test_nothing_flows_back_to_the_records[vmap]",),
    ),
    Mutant(
        "charged-after-hand-over",
        "the ledger is on disk after the uploads were handed on",
        "runtimes/in_process.py",
        "        self._charges.sync()  # before the sum, or any single upload, is handed on\n"
        "        for observer in self._observers:\n"
        "            observer(draw.round, plan.participants, stack(seen))\n",
        "        for observer in self._observers:\n"
        "            observer(draw.round, plan.participants, stack(seen))\n"
        "        self._charges.sync()\n",
        (IN_PROCESS + "::test_charges_are_synced_before_anybody_sees_an_upload",),
    ),
    Mutant(
        "never-synced",
        "charges are appended, and wait in a buffer",
        "runtimes/in_process.py",
        "        self._charges.sync()  # before the sum, or any single upload, is handed on\n",
        "",
        (IN_PROCESS + "::test_charges_are_synced_before_anybody_sees_an_upload",),
    ),
    Mutant(
        "last-stack-uncharged",
        "the last stack of a round is not charged",
        "runtimes/in_process.py",
        "            self._charges.append(charges)\n",
        "            if first + self._stack_size < len(plan.participants):\n"
        "                self._charges.append(charges)\n",
        (IN_PROCESS + "::test_charges_are_synced_before_anybody_sees_an_upload",),
    ),
    Mutant(
        "correction-reversed",
        "c_i has the wrong sign: SCAFFOLD doubles the drift",
        "algorithms/scaffold.py",
        "correction = c - c_i",
        "correction = c_i - c",
        (SCAFFOLD + "::test_the_correction_has_the_papers_sign",),
    ),
)

LEDGERS = (
    Mutant(
        "fresh-noise-not-charged",
        "the ledger takes fresh noise for the old bits",
        "privacy/ledger.py",
        "return (charge.round, charge.silo, charge.share, charge.release, charge.noise_id)",
        'return (charge.round, charge.silo, charge.share, charge.release, "-")',
        (LEDGER + "::test_the_same_bits_count_once",),
    ),
    Mutant(
        "fresh-noise-not-named",
        "all attempts have the same name in the ledger",
        "oracle.py",
        'return f"{self.run}.{self.attempt}"',
        'return f"{self.run}.0"',
        (ORACLE + "::test_other_seeds_rounds_attempts_and_runs_share_neither_noise_nor_batches",),
    ),
    Mutant(
        "fresh-noise-not-counted",
        "the views count fresh noise as the old bits",
        "privacy/views.py",
        "charge.release, charge.noise_id)\n            more",
        'charge.release, "")\n            more',
        (VIEWS + "::test_replayed_bits_count_once_and_fresh_bits_again",),
    ),
    Mutant(
        "fresh-noise-not-drawn",
        "after a crash other bits are released with the old noise",
        "training/ledgers.py",
        'return 1 + max(int(charge.noise_id.rpartition(".")[2]) for charge in own)',
        "return before",
        (RESUME + "::test_fresh_noise_where_bits_differ",),
    ),
    Mutant(
        "fresh-noise-twice",
        "after a second loss of the checkpoint, fresh noise is that which was fresh after the first",
        "training/ledgers.py",
        'return 1 + max(int(charge.noise_id.rpartition(".")[2]) for charge in own)',
        "return before + 1",
        (RESUME + "::test_a_checkpoint_that_was_lost_twice",),
    ),
    Mutant(
        "replay-unseen",
        "a resumed run forgets which rounds it had released",
        "training/ledgers.py",
        "replayed = any(charge.round >= rounds for charge in own)",
        "replayed = any(charge.round > rounds + 100 for charge in own)",
        (RESUME + "::test_fresh_noise_costs_more",),
    ),
    Mutant(
        "gpu-trusted",
        "a GPU is trusted to repeat its bits",
        "training/ledgers.py",
        '(here["repeats"] and arithmetics == {_digest(here)})',
        "(arithmetics == {_digest(here)})",
        (RESUME + "::test_fresh_noise_where_bits_never_repeat",),
    ),
    Mutant(
        "more-of-a-round-not-charged",
        "further releases of a round that the ledger knows are not charged",
        "privacy/ledger.py",
        "if max(self._counts.get(key, 0), new.get(key, 0)) >= charge.count:",
        "if max(self._counts.get(key, 0), new.get(key, 0)):",
        (LEDGER + "::test_the_same_bits_count_once",),
    ),
    Mutant(
        "sync-without-fsync",
        "a power cut loses charges of what had left",
        "privacy/ledger.py",
        "            self._file.flush()\n            os.fsync(self._file.fileno())\n",
        "            self._file.flush()\n",
        (LEDGER + "::test_after_a_failed_sync_nothing_more_is_accepted",),
    ),
    Mutant(
        "sync-without-flush",
        "a killed process loses charges of what had left",
        "privacy/ledger.py",
        "            self._file.flush()\n            os.fsync(self._file.fileno())\n",
        "            os.fsync(self._file.fileno())\n",
        (LEDGER + "::test_after_a_sync_all_of_it_is_in_the_file",),
    ),
    Mutant(
        "checksum-unchecked",
        "a changed line of the ledger is believed",
        "privacy/ledger.py",
        "if check != _checksum(self._check, body):",
        "if len(check) != 16:",
        (LEDGER + "::test_a_changed_line_is_refused_wherever_it_was_changed",),
    ),
    Mutant(
        "lines-unchained",
        "whole lines may be missing from the ledger",
        "privacy/ledger.py",
        "hashlib.sha256(previous.encode() + body)",
        "hashlib.sha256(body)",
        (LEDGER + "::test_missing_doubled_and_swapped_lines_are_refused",),
    ),
    Mutant(
        "end-of-the-ledger-missing",
        "a ledger that lost its last lines is believed",
        "training/ledgers.py",
        "    if held < known:\n",
        "    if held < 0:\n",
        (RESUME + "::test_a_damaged_ledger_is_refused",),
    ),
    Mutant(
        "earlier-attempts-forgotten",
        "the budget forgets what was released before a crash",
        "training/accounting.py",
        "final = [charge for charge in ledger if not repeats(charge)]",
        "final: list[Charge] = []",
        (ACCOUNT + "::test_a_resumed_account_decides_as_the_undisturbed_one",),
    ),
)

VIEWING = (
    Mutant(
        "best-silo",
        "the server's epsilon is the best silo's",
        "privacy/views.py",
        "worst = max(candidates, key=of, default=None)",
        "worst = min(candidates, key=of, default=None)",
        (VIEWS + "::test_the_worst_silo_is_named",),
    ),
    Mutant(
        "mean-silo",
        "the server's epsilon is the mean over silos",
        "privacy/views.py",
        "epsilon=known[()] if worst is None else of(worst)",
        "epsilon=known[()] if worst is None else sum(of(kind) for kind in kinds) / len(kinds)",
        (VIEWS + "::test_the_worst_silo_is_named",),
    ),
    Mutant(
        "rates-not-compared",
        "a silo is left out as dominated although its rate is larger",
        "privacy/views.py",
        "        and m.release.rate >= n.release.rate\n",
        "",
        (VIEWS + "::test_fewer_releases_at_a_larger_rate_can_be_the_worst",),
    ),
    Mutant(
        "overlapping-shares-in-parallel",
        "shares with records in common are composed in parallel",
        "privacy/views.py",
        "        if first >= reach:\n",
        "        if first >= 0:\n",
        (VIEWS + "::test_overlapping_shares_are_composed_together",),
    ),
    Mutant(
        "chains-of-shares-cut",
        "a share that lies within an earlier, longer one starts a group of its own",
        "privacy/views.py",
        "reach = max(reach, last)",
        "reach = last",
        (VIEWS + "::test_groups_are_the_connected_components_of_overlap",),
    ),
    Mutant(
        "shares-of-a-silo-in-parallel",
        "shares are composed in parallel where a whole silo is replaced",
        "privacy/views.py",
        '    if unit == "silo":\n        return dict.fromkeys(ordered, 0)\n',
        "",
        (VIEWS + "::test_replacing_a_silo_changes_every_share",),
    ),
    Mutant(
        "mixture-swapped",
        "a silo takes part with probability 1 - p",
        "privacy/pld.py",
        "reach, dl), t.count, t.rounds, t.participation)",
        "reach, dl), t.count, t.rounds, 1 - t.participation if t.participation < 1 else 1.0)",
        (PLD + "::test_a_round_of_many_steps_is_many_rounds_of_one",),
    ),
    Mutant(
        "mixture-amplifies",
        "epsilon is multiplied by the probability of taking part, as if the draw were secret (Noble et al.)",
        "privacy/accountants.py",
        "        return self.bound(pld.normalise(map(_clamped, terms)), delta)",
        "        p = min(term.participation for term in terms)\n"
        "        certain = [replace(term, participation=1.0) for term in terms]\n"
        "        return p * self.bound(pld.normalise(map(_clamped, certain)), delta)",
        (CONTRACT + "::test_the_contract_notices",),
    ),
    Mutant(
        "renyi-mixture-swapped",
        "the Renyi bound weighs the empty round with p",
        "privacy/accountants.py",
        "mixed = np.logaddexp(absent, math.log(participation) + (orders - 1) * present)",
        "mixed = np.logaddexp(math.log(participation), absent + (orders - 1) * present)",
        (ACCOUNTANTS + "::test_rdp_mixture_is_the_moment_of_a_coin",),
    ),
    Mutant(
        "attempts-counted-once",
        "a third party's epsilon forgets that a round was released twice",
        "privacy/views.py",
        "attempts[round_] = max(attempts[round_], len(noise))",
        "attempts[round_] = max(attempts[round_], 1)",
        (VIEWS + "::test_a_round_released_twice_counts_twice_and_as_certain",),
    ),
    Mutant(
        "repeats-amplified",
        "a round that was released twice is amplified as if its draw had been made once",
        "privacy/views.py",
        "1.0 if number > 1 else probability",
        "probability",
        (VIEWS + "::test_a_round_released_twice_counts_twice_and_as_certain",),
    ),
    Mutant(
        "outsider-noise-of-all",
        "an outsider's noise is S times one silo's, not sqrt(S) times",
        "privacy/views.py",
        "release.noise_multiplier * math.sqrt(S / number)",
        "release.noise_multiplier * S / number",
        (VIEWS + "::test_an_outsider_sees_sums_over_a_sample_of_silos",),
    ),
    Mutant(
        "outsider-repeats-forgotten",
        "an outsider's epsilon forgets that a round was released twice",
        "privacy/views.py",
        "max(1, len(noise[round_]))) for round_",
        "1) for round_",
        (VIEWS + "::test_a_round_released_again_to_the_same_silos_is_one_sample_with_less_noise",),
    ),
    Mutant(
        "outsider-of-records",
        "amplification by sampling silos is granted to records, for whom it is not proven",
        "privacy/views.py",
        'if (release.unit, release.neighbouring) != ("silo", "replace_one"):',
        'if release.neighbouring != "replace_one":',
        (VIEWS + "::test_an_outsider_view_of_records_or_of_removed_silos_is_refused",),
    ),
    Mutant(
        "mixture-over-the-realised-rounds",
        "a third party is promised the mixture over as many rounds as the draws happened to allow",
        "training/accounting.py",
        'if certain or self._budget is None or self._privacy.budget_view != "server":',
        "if True:",
        (ACCOUNT + "::test_a_third_partys_epsilon_does_not_depend_on_how_long_the_draws_let_a_run_go_on",),
    ),
    Mutant(
        "rounds-of-the-warm-up-cheap",
        "drawn rounds count with what they cost, which depends on earlier draws",
        "training/accounting.py",
        "    if len(set(drawn)) < 2:\n",
        "    if len(set(drawn)) < 9:\n",
        (ACCOUNT + "::test_rounds_that_cost_more_by_the_draws_all_count_as_dearest",),
    ),
    Mutant(
        "participation-understated",
        "a third party is promised a smaller probability of taking part than S/M",
        "training/accounting.py",
        "self._setting.num_participants / self._setting.num_silos",
        "self._setting.num_participants / (self._setting.num_silos + 1)",
        (ACCOUNT + "::test_a_third_party_is_promised_the_probability_of_the_draw",),
    ),
    Mutant(
        "everybody-taken-for-sampled",
        "rounds that all silos take part in are amplified as sampled ones",
        "training/accounting.py",
        'everybody = plan.participation == "all" or',
        'everybody = plan.participation == "none" or',
        (ACCOUNT + "::test_a_third_party_is_promised_the_probability_of_the_draw",),
    ),
    Mutant(
        "no-noise-guarantees",
        "a run without noise states a guarantee",
        "training/statement.py",
        'return "none: no noise was added"',
        'return "differential privacy, as stated in views"',
        (RUN + "::test_without_noise_there_is_no_epsilon",),
    ),
)

ACCOUNTING = (
    Mutant(
        "optimistic-grid",
        "losses are rounded down on the grid",
        "privacy/pld.py",
        "up = np.clip(np.expm1(cell * dl - loss) / math.expm1(-dl), 0.0, 1.0)",
        "up = np.zeros_like(loss)",
        (PLD + "::test_one_step_is_bounded_tightly",),
    ),
    Mutant(
        "middling-grid",
        "losses are rounded to the nearest point of the grid",
        "privacy/pld.py",
        "up = np.clip(np.expm1(cell * dl - loss) / math.expm1(-dl), 0.0, 1.0)",
        "up = np.round(loss / dl - cell)",
        (PLD + "::test_one_step_is_bounded_tightly",),
    ),
    Mutant(
        "tails-dropped",
        "mass beyond the grid counts as no loss instead of an infinite one",
        "privacy/pld.py",
        "self.infinite = sum(f.count * f.rounds * f.step.infinite for f in factors)",
        "self.infinite = 0.0",
        (PLD + "::test_tails_are_charged",),
    ),
    Mutant(
        "window-dropped",
        "what lies above the window of the Fourier transform counts as no loss",
        "privacy/pld.py",
        "math.exp(slack) + beyond + self.infinite",
        "math.exp(slack) + self.infinite",
        (PLD + "::test_every_tilt_gives_an_upper_bound_to_the_last_grid_point",),
    ),
    Mutant(
        "rounding-dropped",
        "rounding errors of the Fourier transform are taken for privacy",
        "privacy/pld.py",
        "bound = (sums + rounding) * math.exp(slack)",
        "bound = sums * math.exp(slack)",
        (PLD + "::test_every_tilt_gives_an_upper_bound_to_the_last_grid_point",),
    ),
    Mutant(
        "one-round-less",
        "n rounds are composed as n - 1",
        "privacy/pld.py",
        "product *= psi**factor.rounds",
        "product *= psi ** max(1, factor.rounds - 1)",
        (PLD + "::test_two_steps_are_bounded_tightly",),
    ),
    Mutant(
        "one-step-less",
        "a round of K steps is composed as K - 1",
        "privacy/pld.py",
        "psi = fft.rfft(folded) ** factor.count",
        "psi = fft.rfft(folded) ** max(1, factor.count - 1)",
        (PLD + "::test_a_round_of_many_steps_is_many_rounds_of_one",),
    ),
    Mutant(
        "profile-below-one",
        "below a = 1 a fixed batch's profile loses what is left: its mass at a loss of 0 goes to the far left",
        "privacy/pld.py",
        "return [(loss, upper), (-loss, lower), (np.zeros(1), np.array([atom]))]",
        "return [(loss, upper), (-loss, lower), (-loss[-1:], np.array([atom]))]",
        (PLD + "::test_one_step_is_bounded_tightly",),
    ),
    Mutant(
        "fixed-as-the-mixture",
        "replacing a record of a fixed batch is accounted for as the mixture against N(0, s^2), one direction only",
        "privacy/pld.py",
        'return release.sampler == "poisson" and release.rate < 1',
        "return release.rate < 1",
        (PLD + "::test_two_steps_are_bounded_tightly",),
    ),
    Mutant(
        "one-direction",
        "of adding and removing a record the cheaper is accounted for",
        "privacy/pld.py",
        '("remove", "add") if any',
        '("add",) if any',
        (PLD + "::test_one_step_is_bounded_tightly",),
    ),
    Mutant(
        "amplified-twice",
        "amplification by sampling counts twice: q^2",
        "privacy/pld.py",
        "sigma, rate = release.noise_multiplier, release.rate\n    z, weight",
        "sigma, rate = release.noise_multiplier, release.rate**2\n    z, weight",
        (PLD + "::test_one_step_is_bounded_tightly",),
    ),
    Mutant(
        "delta-split",
        "each direction may spend all of delta, and half again",
        "privacy/pld.py",
        "return min(_first_below(*self.curve(share * tilt, delta), delta) for share in _TILTS)",
        "return min(_first_below(*self.curve(share * tilt, delta), 1.5 * delta) for share in _TILTS)",
        (PLD + "::test_gaussians_on_the_grid_match_the_closed_form_at_every_delta",),
    ),
    Mutant(
        "parts-not-added",
        "equal releases of several rounds count as those of the last",
        "privacy/pld.py",
        "rounds[key] = rounds.get(key, 0) + term.rounds",
        "rounds[key] = term.rounds",
        (PLD + "::test_order_and_grouping_do_not_matter",),
    ),
    Mutant(
        "any-sampler",
        "a sampler is accounted for under neighbours that no theorem covers",
        "privacy/pld.py",
        "    if sound[release.sampler] != release.neighbouring:\n",
        "    if False:\n",
        (PLD + "::test_what_is_not_proven_is_refused",),
    ),
    Mutant(
        "meanings-mixed",
        "releases under different neighbouring relations are added up",
        "privacy/pld.py",
        "    if len(meanings) > 1:\n",
        "    if len(meanings) > 9:\n",
        (PLD + "::test_mixed_meanings_are_refused",),
    ),
    Mutant(
        "largest-gaussian",
        "of several Gaussians only the largest counts",
        "privacy/accountants.py",
        "mu = math.hypot(*(math.sqrt(t.count * t.rounds) / t.release.noise_multiplier for t in terms))",
        "mu = max(math.sqrt(t.count * t.rounds) / t.release.noise_multiplier for t in terms)",
        (ACCOUNTANTS + "::test_gaussians_compose_exactly",),
    ),
    Mutant(
        "renyi-of-half-the-sensitivity",
        "the Renyi accountant reads the noise as a multiple of C where it is one of 2C",
        "privacy/accountants.py",
        "gaussian = dp_event.GaussianDpEvent(release.noise_multiplier)",
        "gaussian = dp_event.GaussianDpEvent(2 * release.noise_multiplier)",
        (CONTRACT + "::TestRegistered::test_never_below_the_exact_gaussian",),
    ),
    Mutant(
        "prv-estimate",
        "the PRV accountant states its estimate instead of its upper bound",
        "privacy/accountants.py",
        "composed.compute_epsilon(delta, delta_error, eps_error)[2]",
        "composed.compute_epsilon(delta, delta_error, eps_error)[1]",
        (ACCOUNTANTS + "::test_prv_of_the_smallest_delta",),
    ),
    Mutant(
        "prv-delta",
        "the PRV accountant takes a delta ten times as large",
        "privacy/accountants.py",
        "return _prv(tuple(groups), delta, self.eps_error)",
        "return _prv(tuple(groups), 10 * delta, self.eps_error)",
        (ACCOUNTANTS + "::test_prv_lies_where_it_says",),
    ),
    Mutant(
        "no-noise-has-an-epsilon",
        "releases without noise have a finite epsilon",
        "privacy/accountants.py",
        "            return math.inf\n        return self.bound",
        "            return 1e4\n        return self.bound",
        (CONTRACT + "::TestRegistered::test_no_noise_is_no_guarantee",),
    ),
)

BUDGETING = (
    Mutant(
        "budget-after-the-round",
        "the budget is checked for what was spent, not for the round to come",
        "training/accounting.py",
        "planned = {silo: [self._planned(silo, cost), *earlier.get(silo, ())] for silo in plan.participants}",
        "planned = {silo: [*earlier.get(silo, ())] for silo in plan.participants}",
        (ACCOUNT + "::test_the_budget_is_used_up_and_not_passed",),
    ),
    Mutant(
        "budget-of-another-delta",
        "the budget holds at ten times the delta",
        "training/accounting.py",
        "Budget(config.privacy.epsilon, config.privacy.delta, budget_accountant",
        "Budget(config.privacy.epsilon, 10 * config.privacy.delta, budget_accountant",
        (ACCOUNT + "::test_the_budget_is_used_up_and_not_passed",),
    ),
    Mutant(
        "budget-of-one-silo",
        "the budget looks at one silo",
        "privacy/budget.py",
        "for terms in undominated(silos):",
        "for terms in undominated(silos)[:1]:",
        (BUDGET + "::test_the_dearest_of_silos_that_cannot_be_compared_stops_it",),
    ),
    Mutant(
        "budget-off-by-one",
        "one release more than the budget allows",
        "privacy/budget.py",
        "return terms[0].rounds <= self._most[one]",
        "return terms[0].rounds <= self._most[one] + 1",
        (BUDGET + "::test_allows_exactly_what_fits",),
    ),
    Mutant(
        "first-that-does-not-fit",
        "the search returns the first number of rounds that does not fit",
        "privacy/calibration.py",
        "low, high = (middle, high) if fits(middle) else (low, middle)\n    return low",
        "low, high = (middle, high) if fits(middle) else (low, middle)\n    return high",
        (ACCOUNTANTS + "::test_max_rounds_is_the_last_that_fits",),
    ),
    Mutant(
        "budget-ignored",
        "the loop runs the round that the budget refused",
        "training/experiment.py",
        "            if not self.account.affords(progress.rounds, plan):\n",
        "            if progress.rounds and not self.account.affords(progress.rounds - 1, plan):\n",
        (RUN + "::test_a_budget_in_a_third_partys_view",),
    ),
    Mutant(
        "budget-without-begun-rounds",
        "a third party's budget forgets rounds that were begun and not finished",
        "training/accounting.py",
        "costs = _drawn(_dearest({**self._found, **self.costs, round: cost}), self.prior)",
        "costs = _drawn(_dearest({**self.costs, round: cost}), self.prior)",
        (ACCOUNT + "::test_fresh_noise_counts_again",),
    ),
    Mutant(
        "third-party-fresh-noise-free",
        "in a third party's budget rounds that were released again cost nothing",
        "training/accounting.py",
        'again = self._released_again(costs, {round: {*self._noise_ids[round], "the next"}})',
        "again: list[Charge] = []",
        (ACCOUNT + "::test_fresh_noise_counts_again",),
    ),
)

CAPPING = (
    Mutant(
        "cap-off-by-one",
        "a silo takes part once more than max_participations",
        "training/accounting.py",
        "len(self._participations[silo]) < self._cap]",
        "len(self._participations[silo]) <= self._cap]",
        (ACCOUNT + "::test_the_cap_is_used_up_and_not_passed",),
    ),
    Mutant(
        "cap-without-fresh-noise",
        "a round that is released again with fresh noise does not count towards the cap",
        "training/accounting.py",
        "self._participations[charge.silo].add((charge.round, charge.noise_id))",
        'self._participations[charge.silo].add((charge.round, ""))',
        (ACCOUNT + "::test_a_resumed_cap_draws_as_the_undisturbed_one",),
    ),
    Mutant(
        "cap-of-the-cheapest",
        "under a cap the worst case is the cheapest rounds",
        "privacy/views.py",
        "for count in sorted(numbers, reverse=True):",
        "for count in sorted(numbers):",
        (VIEWS + "::test_a_cap_takes_the_dearest_rounds",),
    ),
    Mutant(
        "cap-and-mixture",
        "a third party is promised the mixture although under a cap draws depend on each other",
        "training/accounting.py",
        "return self._cap < (self._config_rounds or MOST_ROUNDS) + again",
        "return False",
        (ACCOUNT + "::test_the_most_frequent_silo_is_what_a_third_partys_epsilon_allows_for_under_a_cap",),
    ),
    Mutant(
        "solved-for-the-best-silo",
        "noise is solved for the silo that needs the least",
        "privacy/calibration.py",
        "return max((accountant.epsilon(terms, delta) for terms in undominated(compositions)), default=0.0)",
        "return min((accountant.epsilon(terms, delta) for terms in undominated(compositions)), default=0.0)",
        ("tests/privacy/test_calibration.py::test_the_worst_of_all_silos_and_shares_counts",),
    ),
    Mutant(
        "solved-anew-on-resume",
        "a resumed run solves for its noise anew, after rounds with another",
        "training/session.py",
        "    return None if known is None else float(known)\n",
        "    return None\n",
        (PLAN_TESTS + "::test_an_unfinished_run_keeps_its_noise",),
    ),
    Mutant(
        "solved-noise-not-in-the-run",
        "runs that differ in the noise they solved for share their normals",
        "training/session.py",
        "noise_name(config, parts.data_sha256, parts.noise_multiplier)",
        "noise_name(config, parts.data_sha256, 1.0)",
        (PLAN_TESTS + "::test_other_noise_has_other_normals",),
    ),
)

SHARING = (
    Mutant(
        "earlier-runs-free",
        "the budget of a shared ledger forgets what earlier runs released",
        "training/accounting.py",
        "planned = {silo: [self._planned(silo, cost), *earlier.get(silo, ())] for silo in plan.participants}",
        "planned = {silo: [self._planned(silo, cost)] for silo in plan.participants}",
        (SHARED + "::test_the_budget_bounds_all_runs_together",),
    ),
    Mutant(
        "shared-ledger-unsynced",
        "uploads leave while the shared ledger is not on disk",
        "training/accounting.py",
        "            self.shared.sync()\n",
        "            pass\n",
        (SHARED + "::test_nothing_leaves_until_both_are_on_disk",),
    ),
    Mutant(
        "other-records-at-the-same-silo",
        "a record is taken to be at the same silo in a run that was dealt other records",
        "privacy/prior.py",
        'same = facts["data_sha256"] == data_sha256',
        "same = True",
        (PRIOR + "::test_runs_on_other_records_count_at_every_silo",),
    ),
    Mutant(
        "earlier-draws-amplify",
        "towards a third party earlier runs count as their draws went, by which this run's are known",
        "privacy/prior.py",
        "for planned in envelope(charges, every_round=True)]",
        "for planned in envelope(charges)]",
        (PRIOR + "::test_a_third_party_gets_no_amplification_for_earlier_runs",),
    ),
    Mutant(
        "lengths-that-draws-decided",
        "the mixture is promised after a run whose length the draws decided",
        "training/accounting.py",
        "return _made_certain(costs) if prior.draws_decided else dict(costs)",
        "return dict(costs)",
        (SHARED + "::test_draws_that_decided_how_long_an_earlier_run_was_leave_no_mixture",),
    ),
    Mutant(
        "envelope-of-the-luckiest",
        "an earlier run on other records counts as its cheapest silo",
        "privacy/prior.py",
        "sum(max(by_silo.values()) for by_silo in rounds.values())",
        "sum(min(by_silo.values()) for by_silo in rounds.values())",
        (PRIOR + "::test_the_envelope_costs_at_least_what_each_silo_does",),
    ),
    Mutant(
        "envelope-of-the-last-rate",
        "an earlier run on other records counts with the last silo's rate, not the largest",
        "privacy/prior.py",
        "rates[kind] = max(rates.get(kind, 0.0), charge.release.rate)",
        "rates[kind] = charge.release.rate",
        (PRIOR + "::test_the_envelope_costs_at_least_what_each_silo_does",),
    ),
)

AUDITING = (
    Mutant(
        "audit-without-selection",
        "the best of nine one-run bounds is taken, each of which fails half of the time",
        "privacy/audit.py",
        "false_alarm / len(GUESSES))",
        "0.5)",
        ("tests/privacy/test_audit.py::test_the_one_run_bound_exceeds_the_truth_no_more_often_than_it_says",),
    ),
    Mutant(
        "audit-without-delta",
        "the one-run bound forgets that the mechanism may fail with probability delta",
        "privacy/audit.py",
        "return min(1.0, tail + 2 * num_canaries * delta * worst)",
        "return min(1.0, tail)",
        ("tests/privacy/test_audit.py::test_the_p_value_by_its_formula_term_by_term",),
    ),
)

PROJECTING = (
    Mutant(
        "projection-onto-twice-the-ball",
        "points outside a ball are put at twice its radius",
        "core/balls.py",
        "(ball.radius / norm)",
        "(2 * ball.radius / norm)",
        (
            "tests/core/test_balls.py::test_a_point_outside_goes_to_the_surface_along_the_line_to_the_center",
            "tests/algorithms/test_mb_sgd.py::test_the_projection_keeps_the_model_in_the_ball",
        ),
    ),
    Mutant(
        "phases-twice-as-wide",
        "a localized phase may go twice as far from its center as its theorem says",
        "algorithms/isrl.py",
        'Ball(server["center"], stage.radius)',
        'Ball(server["center"], 2 * stage.radius)',
        ("tests/algorithms/test_localized.py::test_a_phase_stays_within_its_ball",),
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *MECHANISMS,
    *STREAM_KEYS,
    *SECURE,
    *CLIPPING,
    *ADAPTING,
    *SAMPLING,
    *CHARGING,
    *LEDGERS,
    *VIEWING,
    *ACCOUNTING,
    *BUDGETING,
    *CAPPING,
    *SHARING,
    *AUDITING,
    *PROJECTING,
)
