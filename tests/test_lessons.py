"""Faults that users of other trainers reported, by kind, and the tests that keep each kind away here."""

import ast
import functools
import pathlib

TESTS = pathlib.Path(__file__).resolve().parent

KEPT_AWAY = {
    "a row that is masked out still counts in a denominator": "objective/test_aggregates.py::a_masked_row_is_in_no_denominator",
    "the denominator is not that of the optimiser step": """objective/test_aggregates.py::the_denominator_is_that_of_the_optimiser_step
        train/test_step.py::a_minibatch_is_normalised_over_its_own_rows""",
    "accumulating gradients scales them": """objective/test_aggregates.py::micro_batches_add_up
        train/test_step.py::devices_and_micro_batches_do_not_change_the_gradient""",
    "means of micro-batches or shards are averaged": """objective/test_aggregates.py::shards_add_up
        objective/test_properties.py::a_step_is_finite_and_the_same_on_any_devices_in_any_micro_batches_with_any_padding_and_order""",
    "nobody knows which mean over tokens a method has": "objective/test_aggregates.py::token_mean_and_prompt_token_mean_differ_by_the_known_factor",
    "a batch without a token is 0/0": """objective/test_aggregates.py::nothing_to_train_is_a_loss_of_zero_with_zero_gradients
        train/test_step.py::a_batch_without_a_token_has_a_zero_gradient""",
    "masks are read off the padding id": """rollout/test_collect.py::masks_come_from_lengths_whatever_the_padding_token_is
        models/test_decoder.py::a_prompt_may_contain_the_padding_id""",
    "one of several stop ids is honoured": """rollout/test_sampler.py::any_stop_id_ends_a_row_and_belongs_to_it
        models/test_tokenizer.py::eos_ids_are_collected_from_every_file""",
    "padding or neighbours change log-probabilities": """models/test_decoder.py::padding_and_longer_neighbours_are_invisible
        rollout/test_sampler.py::padding_does_not_matter""",
    "positions count padding": """models/test_decoder.py::prefilled_prompts_continue_like_one_plain_forward
        models/test_parity.py::transformers_with_padding_on_the_left_gives_the_same""",
    "the stop token gets no gradient": "train/test_step.py::every_sampled_token_learns_the_stop_token_too_and_nothing_else_does",
    "a token that was not sampled is trained": "rollout/test_engine.py::the_token_that_completes_a_string_is_the_last",
    "a prompt begins with two BOS, or none": """models/test_tokenizer.py::files_of_other_families_give_the_ids_of_the_reference
        models/test_tokenizer.py::gguf_bos_is_added_once_and_every_eos_is_found""",
    "text is encoded again and gives other ids": "rollout/test_collect.py::what_was_sampled_is_what_is_trained_however_else_its_text_could_be_encoded",
    "a tool's text is trained where an answer is cut": "rollout/test_turns.py::where_there_is_no_room_an_answer_is_cut_or_not_asked_for",
    "long prompts are cut without a word": """rollout/test_prompts.py::policy_error_names_the_record_the_limit_and_the_ways_out
        rollout/test_prompts.py::policy_drop_skips_and_counts_also_after_a_resume
        rollout/test_prompts.py::policy_cut_left_keeps_the_end_and_the_first_special_token_and_counts""",
    "sizes that do not divide fail after the model is loaded": "test_bad_configs.py::a_config_that_cannot_be_run_is_refused_with_one_sentence",
    "sampler and trainer disagree, by temperature or by cuts": """rollout/test_sampler.py::stored_statistics_are_the_scorers
        rollout/test_sampler.py::stored_log_probabilities_are_those_of_the_whole_tempered_vocabulary
        train/test_loop.py::a_top_p_that_biases_the_gradient_is_noted""",
    "entropy is that of untempered logits": "test_stats.py::an_untempered_entropy_would_be_far_off",
    "temperature 0 divides by 0": "rollout/test_sampler.py::greedy_takes_the_most_likely_token_and_stores_its_log_probability_at_temperature_1",
    "the first ratio is not 1": """train/test_step.py::where_the_new_policy_is_the_old_one_the_ratio_is_exactly_one
        train/test_step.py::against_recomputed_log_probabilities_the_first_ratio_is_one_to_rounding""",
    "log-probabilities are kept in half precision": """test_stats.py::half_precision_inputs_give_float32_statistics_and_gradients_as_exact_as_their_type
        train/test_precision.py::parameters_statistics_and_stored_log_probabilities_are_float32""",
    "scoring lacks what sampling has of a family": "rollout/test_sampler.py::stored_statistics_are_the_scorers_under_a_softcap_and_top_k",
    "every position has the same noise": """rollout/test_sampler.py::a_flat_model_draws_every_symbol_equally_often_at_every_position
        rollout/test_engine.py::each_row_and_position_has_a_noise_of_its_own""",
    "no top-k means greedy": "rollout/test_sampler.py::a_top_k_of_none_or_all_is_no_cut",
    "rows get the parameters of other rows, ids overflow": """rollout/test_engine.py::a_row_is_that_of_a_whole_request_with_its_parameters
        rollout/test_sampler.py::ids_above_16_bits_are_drawn_and_kept""",
    "top-p cuts in another order": "rollout/test_sampler.py::the_order_is_top_k_then_top_p",
    "answers of a group are equal": "rollout/test_sampler.py::samples_of_a_prompt_its_occurrences_seeds_and_steps_all_differ",
    "keys of old weights survive an update": "rollout/test_engine.py::no_push_leaves_anything_of_the_weights_before_it",
    "ratios are reported after they were cut": "objective/test_token_weights.py::sampler_correction_matches_a_loop_and_reports_raw_ratios",
    "one value that is not finite poisons a step": "rollout/test_collect.py::a_row_with_a_log_probability_that_is_not_finite_is_masked_and_counted",
    "a deviation of rounding errors blows an advantage up": """objective/test_advantages.py::nearly_equal_rewards_stay_bounded
        objective/test_group_faults.py::no_advantage_grows_with_a_deviation_of_almost_nothing""",
    "a rejected answer moves its group": "objective/test_rejected_rows.py::what_is_left_of_a_group_is_the_group",
    "statistics of group and batch, shard and whole are swapped": """objective/test_group_faults.py::one_denominator_is_the_groups_and_the_other_the_batchs
        objective/test_group_faults.py::groups_are_the_same_on_eight_devices
        objective/test_advantages.py::the_batch_is_that_of_all_devices""",
    "an answer without a reward is NaN": "rollout/test_collect.py::an_answer_without_a_reward_is_taken_out_and_counted",
    "a group of one learns nothing and says nothing": "objective/test_advantages.py::a_group_of_one_is_refused_before_anything_runs",
    "equal prompts are taken for one group": "objective/test_group_faults.py::a_prompt_that_stands_twice_in_a_batch_is_two_groups",
    "the last prompts are dropped": """rollout/test_prompts.py::every_epoch_has_every_record_once_in_a_new_order
        rollout/test_prompts.py::seven_problems_in_batches_of_four_score_seven""",
    "the gradient of a KL estimator is not that of the KL": """objective/test_regularisers.py::the_expected_gradient_is_that_of_the_kl
        objective/test_kl_faults.py::a_tokens_kl_has_its_own_ratio_whatever_weighs_the_gain""",
    "a coefficient is applied twice": "objective/test_kl_faults.py::twice_the_coefficient_doubles_the_penalty_and_nothing_else",
    "a reference is computed for nothing": "train/test_reference.py::without_a_penalty_no_forward_of_a_reference_is_traced",
    "the reference drifts or has another temperature": """train/test_reference.py::at_the_start_the_kl_is_exactly_zero_and_so_is_its_gradient
        train/test_reference.py::donated_updates_leave_the_reference_as_it_is
        train/test_reference.py::a_reference_is_scored_at_the_temperature_of_the_policy""",
    "CISPO has another gradient or other bounds": """objective/test_clips_papers.py::the_gradient_of_cispo_is_the_detached_weight
        objective/test_clips_papers.py::cispo_bounds_are_offsets_from_one""",
    "a quantile is that of a shard": "objective/test_token_weights.py::the_quantile_is_that_of_all_rows_on_any_number_of_devices",
    "groups are filtered by the shaped reward": "objective/test_masks.py::an_all_wrong_group_is_dropped_although_its_shaped_rewards_differ",
    "dynamic sampling never ends, or changes shapes": """train/test_dynamic_sampling.py::a_constant_reward_ends_the_search_each_step_and_moves_nothing
        train/test_dynamic_sampling.py::every_batch_is_full_of_mixed_groups_and_nothing_is_compiled_again
        train/test_dynamic_sampling.py::groups_that_are_over_are_trained_on_in_the_next_step""",
    "a verifier works in the main thread only": "tasks/test_verifier_fuzz.py::the_same_verdict_in_a_thread_an_event_loop_and_a_process",
    "an endless verifier hangs a run or its pool": """rollout/test_workers.py::after_a_batch_of_endless_verifiers_the_next_is_scored_in_time
        rollout/test_workers.py::one_endless_call_of_64_does_not_stop_the_others""",
    "wrong, late and broken are one 0": "rollout/test_workers.py::wrong_late_and_broken_are_kept_apart",
    "verdicts that are known to be wrong come back": """tasks/test_verifier_cases.py::every_case_where_we_judge_otherwise_is_explained
        tasks/test_instruction_checks.py::a_relation_is_not_reversed_and_counts_from_nought""",
    "what a model wrote gets out, or forges its verdict": """tasks/test_sandbox.py::64_programs_at_once_are_contained
        tasks/test_code.py::hostile_answers_all_at_once_are_contained_and_none_is_right""",
    "a resumed run is another run": """train/test_resume.py::kill_in_step_seven_and_resume_is_bit_identical
        rollout/test_prompts.py::a_new_stream_continues_exactly_across_epoch_edges
        rollout/test_prompts.py::other_data_is_refused_on_resume""",
    "an option is never read": "test_house.py::each_config_field_is_read",
    "the old checkpoint is deleted before the new one is whole": "train/test_resume.py::a_disk_that_fills_up_leaves_the_previous_checkpoint",
    "SIGTERM waits for the end of a step": "train/test_resume.py::sigterm_saves_what_is_done_and_resume_is_bit_identical",
    "a checkpoint is bound to its mesh": "train/test_checkpoint_meshes.py::parameters_saved_with_fsdp_8_give_the_same_logits_elsewhere",
    "an export loses a head, an adapter or a name": """models/test_export.py::transformers_computes_the_same_logits_to_the_bit
        models/test_export.py::the_tensors_have_the_names_and_shapes_that_transformers_writes
        models/test_lora.py::the_merged_export_has_the_logits_of_the_adapter_and_not_the_base""",
    "half-precision parameters swallow small updates": "train/test_precision.py::small_updates_are_not_lost_because_masters_are_float32",
    "logits of all tokens are there at once": """test_stats.py::no_array_over_batch_length_and_vocabulary_exists
        train/test_step_memory.py::no_array_of_rows_by_tokens_by_vocabulary_exists""",
    "ragged steps compile again": """train/test_program.py::each_function_is_compiled_once_for_each_bucket_of_prompt_lengths
        train/test_loop.py::each_function_is_traced_once""",
    "processes train different models, or wait for ever": """train/test_processes.py::two_processes_stopped_by_one_and_four_that_go_on_are_one_process
        train/test_processes.py::a_process_that_is_killed_ends_the_other_one_with_a_message""",
    "rows of old weights are not told, or lost": """train/test_ahead.py::every_row_says_its_weights_and_none_is_older_than_is_allowed
        train/test_ahead.py::no_group_is_lost""",
    "evaluation drops problems, or samples as training does": """train/test_evaluate.py::seven_prompts_in_batches_of_four_are_all_scored_once
        train/test_evaluate.py::held_out_answers_may_be_drawn_otherwise_than_in_training
        train/test_loop.py::it_is_evaluated_before_and_after_but_never_twice""",
    "a part of a model's computation is dropped": "models/test_parity.py::logits_of_ragged_prompts_equal_transformers",
}


@functools.cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_kind_of_fault_has_its_tests():
    for fault, names in KEPT_AWAY.items():
        for name in names.split():
            file, _, test = name.partition("::")
            assert f"test_{test}" in functions_of(file), f"{fault}: there is no {name}"
