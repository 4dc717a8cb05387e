"""What cells say together: the gap's chain, shares and verdicts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from defects.planting import constant, defect, with_result, wrap


@defect("analysis.shapley", "test_gap_analysis.py", "TestShares")
def every_occasion_counts_alike(shapley: Any) -> None:
    """Shapley's weights are those of a plain mean over the sets."""

    def evenly(original: Any) -> Any:
        def occasions(player: Any, players: Any) -> Any:
            found = list(original(player, players))
            return [(before, 1 / len(found)) for before, _ in found]

        return occasions

    wrap(shapley, "occasions", evenly)


@defect("analysis.gap", "test_gap_analysis.py", "tenth_of_a_nat or no_gap")
def shares_of_any_gap(gap: Any) -> None:
    """A share is given however small the distance."""
    constant(gap, "SMALLEST_GAP", lambda least: -1e9)


@defect("analysis.gap", "test_gap_analysis.py", "one_side_of_a_half")
def only_the_average_of_orders_is_judged(gap: Any) -> None:
    """What context is worth as the first and as the last change is its Shapley value."""

    def averages(original: Any) -> Any:
        return lambda player, players, worth: (gap.shapley_value(player, players, worth),) * 2

    wrap(gap, "first_and_last", averages)


@defect("analysis.gap_scores", "test_gap_analysis.py", "TestWhatMayBePublished")
def any_rate_is_published(scores: Any) -> None:
    """An arm counts at the rate it has, whether it was swept or not."""
    wrap(scores, "published_rate", lambda original: lambda rates, sweep, size: rates[0])


@defect("analysis.gap_scores", "test_gap_analysis.py", "lacks_a_seed")
def a_seed_that_broke_down_is_left_out_of_all_arms(scores: Any) -> None:
    """The chain is computed on the seeds that all arms have."""
    wrap(scores.GapScores, "seeds_of_most", lambda original: lambda self, arms, needed: self.common_seeds(arms))


@defect("analysis.gap_closure", "test_gap_analysis.py", "TestClosure")
def the_chain_is_checked_by_its_own_runs(closure: Any) -> None:
    """The distance that the steps are held against is that between the same cells."""
    constant(closure, "SWEEP", lambda sweep: "gap")


@defect("analysis.gap_scores", "test_gap_analysis.py", "other_settings or other_tokens")
def arms_of_other_settings_are_compared(scores: Any) -> None:
    """Models that were trained or scored otherwise stand in one chain."""
    wrap(scores.Run, "conditions", lambda original: lambda run: "")


@defect("intervals", "test_gap_analysis.py", "TestFieller")
def fieller_without_the_denominators_noise(intervals: Any) -> None:
    """The interval of a share treats the whole distance as known."""

    def plain(original: Any) -> Any:
        def interval(numerator: Any, denominator: Any, confidence: float = 0.95) -> Any:
            mean = sum(denominator) / len(denominator)
            low, high = intervals.seed_interval(numerator, confidence)
            return low / mean, high / mean

        return interval

    wrap(intervals, "fieller_interval", plain)


@defect("analysis.equivalence", "test_equivalence.py", "statsmodels_with_holm")
def equivalence_is_not_corrected(equivalence: Any) -> None:
    """Each of many comparisons is judged as if it were the only one."""
    wrap(equivalence, "holm_adjusted", lambda original: list)


@defect("analysis.equivalence", "test_equivalence.py", "noise or statsmodels")
def no_difference_is_taken_for_equivalence(equivalence: Any) -> None:
    """Two systems are the same where no difference is significant."""
    from ematrace.intervals import mean_p_value

    def not_different(original: Any) -> Any:
        return lambda a, b, margin: 1 - mean_p_value([x - y for x, y in zip(a, b, strict=True)])

    wrap(equivalence, "equivalence_p_value", not_different)


@defect("analysis.choices", "test_docs_tables.py", "TestChoices")
def every_change_is_beyond_scatter(choices: Any) -> None:
    """A change counts as more than an accident of the seed however small it is."""
    wrap(choices.Change, "beyond_scatter", lambda original: lambda change: change.difference != 0.0)


@defect("analysis.choices", "test_docs_tables.py", "TestChoices")
def every_direction_holds_under_every_choice(choices: Any) -> None:
    """No choice is said to turn a claim round."""
    with_result(choices, "hold_under", lambda claims: dict.fromkeys(claims, True))


@defect("results.select", "test_ledger_predicates.py", "same_sentences")
def seeds_are_paired_in_reverse(select: Any) -> None:
    """Differences are between one seed of a system and another seed of the other."""
    with_result(select.Selection, "paired_values", lambda pairs: None if pairs is None else (pairs[0], pairs[1][::-1]))


@defect("analysis.gap_predictions", "test_gap_predictions.py", "worth")
def worth_by_the_mean(predictions: Any) -> None:
    """What is lost without predictions counts as nothing if its mean is within the margin."""

    def of_mean(original: Any) -> Any:
        return lambda nats: "nothing" if abs(nats.mean) <= predictions.MARGIN else original(nats)

    wrap(predictions, "worth_of", of_mean)


@defect("experiments.gap_predictions", "test_gap_predictions.py", "numpy")
def least_squares_of_what_it_is_scored_on(predictions: Any) -> None:
    """What is possible is fitted to the windows that it is scored on."""
    wrap(predictions, "shares", lambda original: lambda fit, held: original(held, held))


@defect("experiments.hooks", "test_gap_predictions.py", "numpy")
def hooks_stay(hooks: Any) -> None:
    """What is hooked remains so."""

    def kept(original: Any) -> Any:
        def hooked(pairs: Any) -> Any:
            for module, hook in pairs:
                module.register_forward_hook(hook)
            return nullcontext()

        return hooked

    wrap(hooks, "hooked", kept)


@defect("analysis.gap_context", "test_gap_context.py", "shares_are_of_what_attention_saves")
def shares_of_twice_what_attention_saves(gap_context: Any) -> None:
    """A context is worth half of its share."""

    def of_twice(original: Any) -> Any:
        return lambda part, whole: original(part, 2 * whole)

    wrap(gap_context, "ratio", of_twice)


@defect("analysis.gap_context", "test_gap_context.py", "a_part_of_the_repeated_pairs")
def rare_pairs_stand_for_all(gap_context: Any) -> None:
    """Only the rows of all repeated pairs are computed."""
    constant(gap_context, "RECALLED", lambda parts: parts[:1])


@defect("analysis.gap_recall_beyond", "test_gap_recall_beyond.py", "weighted_by_the_counts")
def every_count_weighs_the_same(beyond: Any) -> None:
    """Other tokens have other counts than the repeated pairs that they are compared with."""
    with_result(beyond, "_shares", lambda shares: dict.fromkeys(shares, 0.1))


@defect("analysis.gap_together", "test_gap_recall_beyond.py", "other_seeds_predictors")
def any_predictor_is_a_mixer(together: Any) -> None:
    """SPEN's predictors stand for attention beside the traces."""
    constant(together, "MIXER", lambda mixer: "static")
