"""Broken code that the acceptance list's tests must notice, and what runs them on it.

    python tests/mutants.py [T35 …]        or: make mutants

Each mutant is one edit of one file. The edited text takes the file's place in a process of its own,
by an import hook: no file is touched. The cited test must then fail; without the edit it must pass.
`tests/pure/test_mutants.py` checks in milliseconds that every edit still fits its file.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/acceptance.md"
FAILED, PASSED = 1, 0
"""Exit codes of pytest: any other one says that nothing was tested."""
LONGEST_SECONDS, ENDLESS = 900, -1
"""A test that runs for longer has not noticed anything; its exit code."""


@dataclass(frozen=True)
class Mutant:
    """An edit that a test must notice.

    Attributes
    ----------
    row : of the acceptance list.
    test : that must fail, as `test_x.py::test_y` in `tests/pure`; parameters may follow.
    file : from the repository's root.
    old, new : text that occurs once in it, and what takes its place.
    """

    row: str
    test: str
    file: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.row}: {self.file}: {self.old!r} -> {self.new!r}"

    def source(self) -> str:
        """Return the edited file; ValueError where the edit fits not exactly once."""
        text = (ROOT / self.file).read_text("utf-8")
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self}: occurs {found} times, should occur once")
        return text.replace(self.old, self.new)

    def install(self) -> None:
        """Have the edited text imported in place of the file; before the file is imported."""
        path, source = str((ROOT / self.file).resolve()), self.source()
        loader = importlib.machinery.SourceFileLoader
        plain = loader.get_code

        def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> CodeType | None:
            if os.path.realpath(self.path) == path:
                return compile(source, self.path, "exec")
            return plain(self, name)

        loader.get_code = get_code  # type: ignore[method-assign]


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "T01",
        "test_lookup.py::test_tail_repeat_counts_the_copied_stretch",
        "cortiq/engine/drafters/ngrams.py",
        "LONGEST = 32",
        "LONGEST = 64",
    ),
    Mutant(
        "T02",
        "test_draft_policies.py::test_depth_by_measured_walls",
        "cortiq/engine/policy/depth.py",
        "return best if rates[best] > BETTER * rates[now] else now",
        "return best",
    ),
    Mutant(
        "T03",
        "test_draft_turns.py::test_t03_value_of_a_block_round_beside_a_chain_s",
        "cortiq/bench/simulated_rounds.py",
        "yield RoundValue(1 + kept, prices",
        "yield RoundValue(kept, prices",
    ),
    Mutant(
        "T03",
        "test_draft_turns.py::test_the_drafter_that_pays_drafts",
        "cortiq/engine/policy/turns.py",
        "if self.arms[best].rate > CLEARLY * now.rate:",
        "if self.arms[best].rate < CLEARLY * now.rate:",
    ),
    Mutant(
        "T04",
        "test_lookup.py::test_lookup_continues_a_repeated_stretch",
        "cortiq/engine/drafters/ngrams.py",
        "if length > best.length:",
        "if length >= best.length:",
    ),
    Mutant(
        "T04",
        "test_lookup.py::test_t04_what_is_drafted_is_the_stretch_that_is_repeated",
        "cortiq/engine/drafters/ngrams.py",
        "return found if found.length >= GRAM else NO_MATCH",
        "return found._replace(after=found.after + 1)",
    ),
    Mutant(
        "T05",
        "test_draft_policies.py::test_depth_follows_what_holds",
        "cortiq/engine/policy/depth.py",
        "moved[j] += DRIFT * (last - moved[j])",
        "moved[j] = last",
    ),
    Mutant(
        "T05",
        "test_draft_policies.py::test_depth_stays_shallow_where_acceptance_wavers",
        "cortiq/engine/policy/depth.py",
        "for j in range(min(depth, accepted + 1)):",
        "for j in range(min(depth, accepted)):",
    ),
    Mutant(
        "T06",
        "test_draft_heads.py::test_t06_rows_outside_the_shortlist_are_never_drafted_and_change_nothing",
        "cortiq/engine/drafters/heads.py",
        "return Argmax(SHORTLIST) if short else wanted",
        "return wanted",
    ),
    Mutant(
        "T07",
        "test_draft_policies.py::test_three_rounds_without_an_accepted_draft_end_a_try",
        "cortiq/engine/policy/depth_trial.py",
        "zeros = self.zeros + 1 if produced <= 1 else 0",
        "zeros = self.zeros + (produced <= 1)",
    ),
    Mutant(
        "T08",
        "test_draft_heads.py::test_t08_a_far_id_brings_the_whole_vocabulary_back_for_a_while",
        "cortiq/engine/policy/streak.py",
        "left = STREAK if token >= far else max(0, left - 1)",
        "left = STREAK if token >= far else left",
    ),
    Mutant(
        "T10",
        "test_acceptance.py::test_t10_hidden_states_of_a_text_are_the_same_every_time",
        "cortiq/backend/stored.py",
        "self.stores = {name: self.owner.new_store(name, slot) for name, slot in slots}",
        "self.stores = vars(self.owner).setdefault(\n            \"shared\", {name: "
        "self.owner.new_store(name, slot) for name, slot in slots}\n        )",
    ),
    Mutant(
        "T10",
        "test_acceptance.py::test_t10_hidden_states_are_those_after_the_norm",
        "cortiq/backend/answers.py",
        "Named: lambda want, walk, at: walk.row_of(want.name, at),",
        "Named: lambda want, walk, at: walk.row_of(\n        \"layers.1.out\" if want.name "
        "== \"hidden\" else want.name, at\n    ),",
    ),
    Mutant(
        "T11",
        "test_generate_loop.py::test_chunk_rows_cut_the_prompt_and_change_nothing",
        "cortiq/engine/in_flight.py",
        "most = sequence.request.chunk_rows",
        "most = sequence.request.chunk_rows + 1",
    ),
    Mutant(
        "T12",
        "test_prefixes.py::test_prompt_reuses_exactly_the_longest_common_prefix",
        "cortiq/engine/prefixes.py",
        "yield _Candidate(min(shared, most), nearest.depth <= most, nearest.value)",
        "yield _Candidate(min(shared, most) - 1, nearest.depth <= most, nearest.value)",
    ),
    Mutant(
        "T14",
        "test_draft_heads.py::test_t14_a_prompt_s_last_row_has_no_pair_yet",
        "cortiq/engine/drafters/heads.py",
        "return max(0, min(fed, ids - 1 - depth))",
        "return max(0, min(fed, ids - depth))",
    ),
    Mutant(
        "T15",
        "test_acceptance.py::test_t15_cancelled_before_the_start_and_not_the_next_time",
        "cortiq/engine/sequence.py",
        "return self._cancelled or self.cancelled()",
        "return self._cancelled",
    ),
    Mutant(
        "T17",
        "test_layers_feed_forward.py::test_gated_mlp_is_its_formula",
        "cortiq/ir/layers/mlp.py",
        "gate = scope.add(ops.Clamp(None, gating.limit), gate, name=\"gate.bounded\")",
        "gate = scope.add(ops.Clamp(-gating.limit, gating.limit), gate, name=\"gate.bounded\")",
    ),
    Mutant(
        "T18",
        "test_published_configs.py::test_t18_an_explicit_schedule_gives_windowed_layers_the_local_table",
        "cortiq/models/gemma3.py",
        "local if window else everywhere",
        "everywhere",
    ),
    Mutant(
        "T18",
        "test_published_configs.py::test_t18_an_explicit_schedule_gives_windowed_layers_the_local_table",
        "cortiq/models/mimo_v2_flash.py",
        "ropes[LOCAL if window else GLOBAL]",
        "ropes[GLOBAL]",
    ),
    Mutant(
        "T18",
        "test_published_configs.py::test_t18_an_explicit_schedule_gives_windowed_layers_the_local_table",
        "cortiq/models/laguna.py",
        "ropes[LOCAL if window else GLOBAL]",
        "ropes[GLOBAL]",
    ),
    Mutant(
        "T18",
        "test_fixture_bits.py::test_t36_is_of_the_model_it_names",
        "cortiq/models/fixtures.py",
        "rope=TABLES[window]",
        "rope=TABLES[None]",
    ),
    Mutant(
        "T18",
        "test_fixture_bits.py::test_t18_windowed_layers_turn_by_their_own_table",
        "backends/reference/cortiq_reference/kernels.py",
        "else op.table.table(position)",
        "else type(op.table)(1e7, op.table.dim).table(position)",
    ),
    Mutant(
        "T22",
        "test_draft_heads.py::test_t22_the_probe_sees_the_module_s_own_width",
        "cortiq/models/heads.py",
        "return replace(op, inner=gate) if gate and isinstance(op, GatedMLP) else op",
        "return op",
    ),
    Mutant(
        "T22",
        "test_draft_heads.py::test_t22_the_probe_sees_the_module_s_own_width",
        "cortiq/bench/head_acceptance.py",
        "tokens = ids[start + depth + 1 : min(start + chunk_rows, count) + depth + 1]",
        "tokens = ids[start + depth : min(start + chunk_rows, count) + depth]",
    ),
    Mutant(
        "T22",
        "test_draft_heads.py::test_t22_the_probe_sees_the_module_s_own_width",
        "cortiq/bench/head_acceptance.py",
        "squared = squared + row * row",
        "squared = squared + row",
    ),
    Mutant(
        "T23",
        "test_acceptance.py::test_t23_speculative_is_plain_greedy_through_exact_ties",
        "cortiq/engine/accept.py",
        "row = rows[index]",
        "row = rows[scheduled.drawing[0]]",
    ),
    Mutant(
        "T23",
        "test_acceptance.py::test_t23_a_draft_that_ties_with_the_token_is_not_the_token",
        "cortiq/engine/accept.py",
        "matches = position < len(drafted) and drafted[position] == token",
        "matches = position < len(drafted)",
    ),
    Mutant(
        "T24",
        "test_acceptance.py::test_t24_where_all_logits_are_equal_drafts_and_target_take_the_same_one",
        "cortiq/engine/drafters/model.py",
        "return int(brought[want])",
        "return int(brought[want]) + 1",
    ),
    Mutant(
        "T25",
        "test_acceptance.py::test_t25_nothing_is_drafted_unless_it_is_asked_for",
        "cortiq/options.py",
        "draft: str = option(\n        \"off\"",
        "draft: str = option(\n        \"lookup\"",
    ),
    Mutant(
        "T26",
        "test_acceptance.py::test_t26_empty_prompts_are_errors",
        "cortiq/engine/prompt_ids.py",
        "    if not prompt:\n        raise RequestError(\"the prompt is empty\"",
        "    if not prompt:\n        raise RequestError(\"there is no prompt\"",
    ),
    Mutant(
        "T27",
        "test_acceptance.py::test_t27_every_token_is_fed_exactly_once",
        "cortiq/engine/accept.py",
        "sequence.fed = state.rewind(len(sequence.ids) - 1)",
        "sequence.fed = state.rewind(len(sequence.ids) - 2)",
    ),
    Mutant(
        "T28, T29",
        "test_acceptance.py::test_t28_t29_a_seed_is_a_stream_whatever_came_before",
        "cortiq/engine/request.py",
        "    if options.seed is not None:\n        return options\n",
        "",
    ),
    Mutant(
        "T30",
        "test_generate_loop.py::test_context_that_fills_up_is_said",
        "cortiq/engine/request.py",
        "is full\" if room < options.max_tokens else",
        "is full\" if room < 0 else",
    ),
    Mutant(
        "T31, T32",
        "test_acceptance.py::test_t31_t32_confidence_and_trace_have_a_true_entry_for_every_token",
        "cortiq/engine/request.py",
        "captures[DrawnLogit(self.calibration)] = None",
        "captures[DrawnLogit(self.calibration * 2)] = None",
    ),
    Mutant(
        "T31, T32",
        "test_acceptance.py::test_t31_t32_confidence_and_trace_have_a_true_entry_for_every_token",
        "cortiq/engine/output.py",
        "        if request.trace:\n            words",
        "        if request.trace and not drafter:\n            words",
    ),
    Mutant(
        "T33",
        "test_acceptance.py::test_t33_logits_say_the_first_greedy_token",
        "cortiq/model/score.py",
        "for index, row in enumerate(rows, start):",
        "for index, row in enumerate(rows, start - 1):",
    ),
    Mutant(
        "T34",
        "test_layers_feed_forward.py::test_mixture_is_its_formula",
        "cortiq/ir/layers/experts.py",
        "if not self.shared_factor:\n            return y",
        "if self.shared_factor:\n            return y",
    ),
    Mutant(
        "T35",
        "test_prefixes.py::test_embedding_prompts_never_meet_kept_prefixes",
        "cortiq/engine/state_manager.py",
        "if self.prefixes is None or sequence.request.embeddings is not None:\n            "
        "return self.executable.open(limit), 0",
        "if self.prefixes is None:\n            return self.executable.open(limit), 0",
    ),
    Mutant(
        "T35",
        "test_prefixes.py::test_t35_embedding_prompts_are_no_prefix_of_anybody_and_have_none",
        "cortiq/engine/state_manager.py",
        "if self.prefixes is None or sequence.request.embeddings is not None:\n            "
        "return self.executable.open(limit), 0",
        "if self.prefixes is None:\n            return self.executable.open(limit), 0",
    ),
    Mutant(
        "T35",
        "test_prefixes.py::test_t35_embedding_prompts_are_no_prefix_of_anybody_and_have_none",
        "cortiq/engine/state_manager.py",
        "point is None or sequence.request.embeddings is not None",
        "point is None",
    ),
    Mutant(
        "T35",
        "test_prefixes.py::test_t35_embedding_prompts_are_no_prefix_of_anybody_and_have_none",
        "cortiq/engine/state_manager.py",
        "sequence.error is None and sequence.request.embeddings is None",
        "sequence.error is None",
    ),
    Mutant(
        "T35",
        "test_prefixes.py::test_t35_embedding_prompts_are_no_prefix_of_anybody_and_have_none",
        "cortiq/engine/prefixes.py",
        "other.state is not None and other.request.embeddings is None",
        "other.state is not None",
    ),
    Mutant(
        "T36",
        "test_fixture_bits.py::test_t36_decode_is_the_whole_prompt_is_two_chunks",
        "backends/reference/cortiq_reference/attention.py",
        "where = np.repeat(positions, per_group)",
        "where = np.repeat(positions * 0 + positions[-1], per_group)",
    ),
    Mutant(
        "T37",
        "test_windows.py::test_a_long_text_in_any_chunks_has_the_same_bits",
        "cortiq/backend/windows.py",
        "return max(0, length - ROLLBACK_ROWS - window + 1) // TILE * TILE",
        "return max(0, length - window + 1 + TILE) // TILE * TILE",
    ),
    Mutant(
        "T37",
        "test_windows.py::test_a_family_of_forks_goes_on_as_if_all_rows_were_there",
        "cortiq/backend/windows.py",
        "return max(0, length - ROLLBACK_ROWS - window + 1) // TILE * TILE",
        "return max(0, length - window + 1 + TILE) // TILE * TILE",
    ),
    Mutant(
        "T37",
        "test_windows.py::test_windowed_slots_stop_growing",
        "cortiq/backend/windows.py",
        "return min(rows, most_rows(self.window)) if self.trims and self.window else rows",
        "return rows",
    ),
    Mutant(
        "T37",
        "test_shared_pages.py::test_rings_do_not_grow_with_the_text_and_go_back_as_far_as_they_say",
        "cortiq/backend/extents.py",
        "return length >= self.length or max(0, length - self.window) >= self.floor",
        "return True",
    ),
    Mutant(
        "T38",
        "test_bitwise.py::test_a_sequence_moves_to_another_executable",
        "cortiq/backend/sequence.py",
        "self.tokens, self.lengths = exported.tokens.tolist(), dict(exported.lengths)",
        "self.tokens, self.lengths = [], dict(exported.lengths)",
    ),
    Mutant(
        "T39, T40",
        "test_draft_heads.py::test_t39_every_draft_layer_has_a_width_of_its_own",
        "cortiq/bench/head_acceptance.py",
        "count, want = final_rows(len(ids), len(ids), depth)",
        "count, want = final_rows(len(ids), len(ids), 0)",
    ),
    Mutant(
        "T39, T40",
        "test_draft_heads.py::test_t40_chunks_change_no_statistic",
        "cortiq/bench/head_acceptance.py",
        "min(start + chunk_rows, count) + depth + 1]",
        "min(start + chunk_rows, count) + depth]",
    ),
    Mutant(
        "T41",
        "test_draft_heads.py::test_t41_incremental_rounds_are_the_teacher_forced_table",
        "cortiq/engine/drafters/heads.py",
        "text.append(forced[step] if step < len(forced) else token)",
        "text.append(token)",
    ),
    Mutant(
        "T41",
        "test_draft_heads.py::test_t41_the_table_is_that_of_the_formula_in_float64",
        "cortiq/models/head_names.py",
        "{NORMED: \"hidden\", RAW: last}",
        "{NORMED: last, RAW: last}",
    ),
    Mutant(
        "T41",
        "test_draft_heads.py::test_t41_the_table_is_that_of_the_formula_in_float64",
        "cortiq/models/heads.py",
        "first = norm(embedded, \"embed_norm\", module.embedding_norm)",
        "first = embedded",
    ),
    Mutant(
        "T42",
        "test_acceptance.py::test_t42_planted_drafters_of_every_honesty_leave_the_greedy_text",
        "cortiq/engine/accept.py",
        "if sequence.output.finish_reason or not matches:",
        "if sequence.output.finish_reason:",
    ),
    Mutant(
        "T42",
        "test_draft_heads.py::test_a_head_changes_nothing_at_any_depth",
        "cortiq/engine/drafters/heads.py",
        "state.rewind(length, entry)",
        "state.rewind(length)",
    ),
    Mutant(
        "T43",
        "test_calls.py::test_what_is_declined_moves_nothing",
        "cortiq/backend/admission.py",
        "if row.position != start + place:",
        "if row.position < start + place:",
    ),
    Mutant(
        "T45",
        "test_bitwise.py::test_rewind_is_never_having_gone_ahead",
        "cortiq/backend/sequence.py",
        "del self.tokens[reached:]",
        "del self.tokens[reached + 1 :]",
    ),
    Mutant(
        "T46",
        "test_calls.py::test_wants_change_nothing",
        "cortiq/backend/answers.py",
        "Named: lambda want, walk, at: walk.row_of(want.name, at),",
        "Named: lambda want, walk, at: walk.row_of(want.name, 0),",
    ),
    Mutant(
        "T47",
        "test_layers.py::test_attention_that_cannot_be_is_refused",
        "cortiq/ir/layers/attention_options.py",
        "not a.output_gate or a.value_width == a.head_dim",
        "True",
    ),
    Mutant(
        "T47",
        "test_layers.py::test_attention_that_cannot_be_is_refused",
        "cortiq/ir/layers/attention_options.py",
        "a.indexer is None or not (a.shares_kv or a.sections or a.until)",
        "True",
    ),
    Mutant(
        "T47",
        "test_layers.py::test_attention_that_cannot_be_is_refused",
        "cortiq/ir/layers/attention_options.py",
        "not (a.shares_kv and a.value_input)",
        "True",
    ),
    Mutant(
        "T48 to T52",
        "test_bounded_window.py::test_what_cannot_be_bounded_is_said",
        "plugins/cortiq-bounded/cortiq_bounded/layers.py",
        "op.window is not None",
        "False",
    ),
    Mutant(
        "T48 to T52",
        "test_bounded_nystrom.py::test_rows_that_queries_look_at_stay_exact",
        "plugins/cortiq-bounded/cortiq_bounded/nystrom.py",
        "np.argsort(-candidates,",
        "np.argsort(candidates,",
    ),
    Mutant(
        "T53 to T55, T58",
        "test_engine.py::test_failed_sequence_does_not_concern_its_neighbours_nor_the_engine",
        "cortiq/engine/engine.py",
        "self._end(sequence, error)\n        if not self._is_in_flight(sequence):",
        "self._end(sequence)\n        if not self._is_in_flight(sequence):",
    ),
    Mutant(
        "T53 to T55, T58",
        "test_acceptance.py::test_t53_a_call_that_fails_ends_with_its_error_and_the_next_is_fresh",
        "cortiq/engine/session.py",
        "        check_outcome(result.outcomes[self.state], pending.position, hint)\n",
        "",
    ),
    Mutant(
        "T53 to T55, T58",
        "test_acceptance.py::test_t53_a_call_that_fails_ends_with_its_error_and_the_next_is_fresh",
        "cortiq/engine/session.py",
        "        finally:\n            self.state.release()",
        "        finally:\n            pass",
    ),
    Mutant(
        "T53 to T55, T58",
        "test_bitwise.py::test_a_failing_sequence_concerns_no_other",
        "cortiq/backend/executable.py",
        "        piece.state.clear()\n",
        "",
    ),
    Mutant(
        "T59",
        "test_route.py::test_the_denominator_floor_counts",
        "cortiq/numerics/expert_weights.py",
        "total = (total + F32(floor))[..., None]",
        "total = total[..., None]",
    ),
    Mutant(
        "T60, T61, T65",
        "test_resonance.py::test_scores_of_the_published_case",
        "plugins/cortiq-skills/cortiq_skills/resonance.py",
        'found = scope.add(ops.Scale(-1.0), found, name="router.found.negative")',
        'found = scope.add(ops.Scale(1.0), found, name="router.found.negative")',
    ),
    Mutant(
        "T60, T61, T65",
        "test_resonance.py::test_shells_leave_experts_out_and_the_others_bits_alone",
        "plugins/cortiq-skills/cortiq_skills/resonance.py",
        "ops.Clamp(0.0, SMALLEST)",
        "ops.Clamp(-SMALLEST, SMALLEST)",
    ),
    Mutant(
        "T60, T61, T65",
        "test_resonance.py::test_the_largest_raw_score_wins_though_powers_are_equal",
        "cortiq/numerics/route.py",
        "keys = scores if selection_bias is None else biased",
        "keys = biased",
    ),
    Mutant(
        "T62",
        "test_route.py::test_renormalised_single_expert_weighs_exactly_one",
        "cortiq/numerics/route.py",
        "    if router.renormalise:\n        weights = renormalised",
        "    if not router.renormalise:\n        weights = renormalised",
    ),
    Mutant(
        "T62",
        "test_route.py::test_masked_experts_weigh_nothing_and_do_not_move_the_others",
        "cortiq/numerics/route.py",
        "late = ~np.take_along_axis(admitted, order, axis=-1)",
        "late = np.take_along_axis(~admitted, order, axis=-1) & False",
    ),
    Mutant(
        "T62",
        "test_route.py::test_t62_the_best_admitted_expert_is_chosen_and_weighs_one",
        "cortiq/numerics/route.py",
        "order = np.argsort(-keys, axis=-1, kind=\"stable\")",
        "order = np.argsort(keys, axis=-1, kind=\"stable\")",
    ),
    Mutant(
        "T62",
        "test_route.py::test_t62_the_best_admitted_expert_is_chosen_and_weighs_one",
        "cortiq/numerics/route.py",
        "else np.where(there, weights, F32(0))",
        "else weights",
    ),
    Mutant(
        "T62",
        "test_route.py::test_t62_the_best_admitted_expert_is_chosen_and_weighs_one",
        "cortiq/numerics/route.py",
        "softmax(weights, there, faults) if whole",
        "softmax(weights, True, faults) if whole",
    ),
    Mutant(
        "T63",
        "test_route_backends.py::test_t63_the_route_of_every_backend_here_is_the_definitions[cpu]",
        "backends/cpu/cortiq_cpu/bind_matrices.py",
        "scaling=F32(router.routed_scaling)",
        "scaling=F32(1)",
    ),
    Mutant(
        "T63",
        "test_route_backends.py::test_t63_the_route_of_every_backend_here_is_the_definitions[torch]",
        "cortiq/backend/array_routing.py",
        "weights = weights * float(F32(router.routed_scaling))",
        "weights = weights / float(F32(router.routed_scaling))",
    ),
)  # fmt: skip


@cache
def cited() -> dict[str, frozenset[str]]:
    """Return the tests that each row of the page names, rows without any left out."""
    rows: dict[str, frozenset[str]] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if not (line.startswith("| T") and len(cells) >= 4):
            continue
        file, tests = "", set[str]()
        for name, test in re.findall(r"`(?:(test_\w+\.py|…)::)?(test_\w+)`", cells[3]):
            file = name if name.startswith("test_") else file
            tests.add(f"{file}::{test}")
        if tests:
            rows[cells[1]] = frozenset(tests)
    return rows


def run_pytest(tests: Iterable[str], *arguments: str) -> int:
    """Run tests in this process; return pytest's exit code."""
    import pytest
    from hypothesis import Phase, settings

    # A failing example need not be made small here.
    settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
    settings.load_profile("mutants")
    names = [f"{ROOT}/tests/pure/{test}" for test in tests]
    options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", *arguments]
    return int(pytest.main([f"--rootdir={ROOT}", *options, *names]))


def in_process_of_its_own(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this file again with other arguments."""
    command = [sys.executable, "-B", __file__, *arguments]
    try:
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        what = f"did not end in {LONGEST_SECONDS} s\n"
        return subprocess.CompletedProcess(command, ENDLESS, what, "")


def survivors(mutants: Sequence[Mutant]) -> Iterable[str]:
    """Run every mutant; yield what is wrong with those whose test did not fail."""
    for mutant in mutants:
        ran = in_process_of_its_own("--one", str(MUTANTS.index(mutant)))
        print("noticed " if ran.returncode == FAILED else "SURVIVED", mutant, flush=True)
        if ran.returncode != FAILED:
            what = "passed" if ran.returncode == PASSED else f"did not run\n{ran.stdout[-2000:]}"
            yield f"{mutant}\n  {mutant.test} {what}{ran.stderr[-1000:]}"


def main() -> int:
    """Run the mutants of the rows given, or of all; return 1 if any survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--plain", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.plain:
        return run_pytest(given.plain)
    if given.one is not None:
        MUTANTS[given.one].install()
        return run_pytest([MUTANTS[given.one].test])
    chosen = [m for m in MUTANTS if not given.rows or set(m.row.split(", ")) & set(given.rows)]
    if not chosen:
        parser.error(f"no mutant is of {' '.join(given.rows)}")
    tests = sorted({mutant.test for mutant in chosen})
    ran = in_process_of_its_own("--plain", *tests)
    if ran.returncode != PASSED:
        print(f"without any edit the tests fail:\n{ran.stdout[-3000:]}{ran.stderr[-1000:]}")
        return 1
    wrong = list(survivors(chosen))
    print(*wrong, f"{len(chosen) - len(wrong)} of {len(chosen)} mutants noticed", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
