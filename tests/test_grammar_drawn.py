"""Fully drawn grammars: what the paper states stays, all else differs between seeds, every sentence has one parse."""

import tomllib
from itertools import combinations

import pytest

from ematrace.grammar import Grammar, GrammarError, draw_full_grammar_pair, load_grammar, parses, position_shares
from ematrace.grammar.draw import WORD_ORDERS, word_orders
from ematrace.grammar.reader import grammars_from

SEEDS = range(24)
HEAD_FINAL = "head_final"
PAPER = load_grammar("A")


@pytest.fixture(scope="module")
def pairs():
    return {seed: draw_full_grammar_pair(seed) for seed in SEEDS}


def whole_order(name: str):
    """One noun phrase at a time, the grammar with every template of a word order."""
    order = word_orders()[name]
    structures = [key for key in order if key != "NP"]
    for noun_phrase in order["NP"]:
        file = tomllib.loads(WORD_ORDERS.with_name("default.toml").read_text())
        file["phrases"] = {"NP": noun_phrase}
        file["structures"] = {
            structure: {
                "share": 1 / len(structures),
                "variants": {k: {"weight": 1 / len(order[structure]), "slots": v} for k, v in order[structure].items()},
            }
            for structure in structures
        }
        yield grammars_from(file, name)["A"]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sentence_parses_to_its_own_roles_and_no_others(pairs, seed):
    for grammar in pairs[seed]:
        for sentence in grammar.sample(60, seed=1):
            assert parses(grammar, sentence.words) == {sentence.roles}
            assert not parses(grammar, (*sentence.words, grammar.words[0]))


@pytest.mark.parametrize("name", word_orders())
def test_any_templates_of_one_word_order_together_are_unambiguous(name):
    for grammar in whole_order(name):
        kinds = {sentence.roles: sentence for sentence in grammar.sample(1500, seed=0)}
        assert {role for roles in kinds for role in roles} == set(PAPER.roles)
        for roles, sentence in kinds.items():
            assert parses(grammar, sentence.words) == {roles}


def test_an_ambiguous_sentence_has_several_parses():
    """The oracle can say no: two templates that differ in roles alone."""
    file = tomllib.loads(WORD_ORDERS.with_name("default.toml").read_text())
    file["structures"]["transitive"] = {
        "share": 0.15,
        "variants": {
            "plain": {"weight": 0.5, "slots": ["NP:agent", "verb=verb_transitive", "NP:patient"]},
            "turned": {"weight": 0.5, "slots": ["NP:patient", "verb=verb_transitive", "NP:agent"]},
        },
    }
    assert len(parses(grammars_from(file, "mine.toml")["A"], ["the", "cat", "sees", "the", "dog"])) == 2


def test_what_the_paper_states_is_kept(pairs):
    for A, B in pairs.values():
        assert (A.roles, A.deep_roles) == (PAPER.roles, PAPER.deep_roles)
        assert {s.name for s in A.structures} == {s.name for s in PAPER.structures}
        assert len({*A.words, *B.words}) == 147
        assert not set(A.content_words) & set(B.content_words)
        assert A.function_words == B.function_words
        assert (A.structures, A.adjective_rate, A.noun_bias) == (B.structures, B.adjective_rate, B.noun_bias)
        assert {slot.role for s in A.structures for v in s.variants for slot in v.slots} == set(A.roles)


def test_two_seeds_differ_in_all_that_is_drawn(pairs):
    first = [A for A, _ in pairs.values()]
    for one, other in combinations(first, 2):
        a, b = one.settings, other.settings
        assert a["shares"] != b["shares"]
        assert a["class_sizes"] != b["class_sizes"]
        assert len(set(one.words) & set(other.words)) < len(one.words) / 4
    assert {A.word_order for A in first} == set(word_orders())
    templates = [tuple(A.settings["templates"].values()) for A in first]
    assert len(set(templates)) >= 20, "24 grammars, and hardly two with the same templates"
    for order in word_orders():
        assert len({t for A, t in zip(first, templates, strict=True) if A.word_order == order}) >= 4


def test_the_same_seed_draws_the_same_grammar():
    assert draw_full_grammar_pair(5) == draw_full_grammar_pair(5)
    assert draw_full_grammar_pair(5)[0].sample(20, 3) == draw_full_grammar_pair(5)[0].sample(20, 3)


def assert_all_heads_last(grammar: Grammar, n: int) -> None:
    for sentence in grammar.sample(n, seed=0):
        assert_heads_last(sentence.roles)


def assert_heads_last(roles: tuple[str, ...]) -> None:
    """Written from what head-final means, not from the templates."""
    assert roles[-1] in ("verb", "verb_intrans", "aux")
    for i, role in enumerate(roles):
        kind, _, phrase = role.partition("_")
        if kind in ("det", "adj"):
            assert f"noun_{phrase}" in roles[i + 1 :], "a determiner or adjective after its noun"
        if role in ("prep_by", "prep_to"):
            assert roles[i - 1] == {"prep_by": "noun_agent", "prep_to": "noun_recip"}[role]
        if role == "aux":
            assert roles[i - 1] == "verb_pass"
        if role == "rel_pron":
            assert roles[i - 1] == "verb_rel", "the relative clause ends in its verb and its marker"
            assert roles[i - 2] == "noun_rel"
            assert {r.partition("_")[0] for r in roles[i + 1 : i + 3]} <= {"det", "adj", "noun"}, "and its noun follows"


def test_head_final_grammars_have_their_heads_last(pairs):
    final = [pair for pair in pairs.values() if pair[0].word_order == HEAD_FINAL]
    assert len(final) == 6
    for grammar in (grammar for pair in final for grammar in pair):
        assert_all_heads_last(grammar, 200)
    for grammar in whole_order(HEAD_FINAL):
        assert_all_heads_last(grammar, 400)
    others = [pair[0] for pair in pairs.values() if pair[0].word_order != HEAD_FINAL]
    for grammar in others:
        with pytest.raises(AssertionError):
            assert_all_heads_last(grammar, 200)


def test_every_third_has_half_passives_and_the_premise_where_subjects_come_first(pairs):
    applies = 0
    for seed, (A, _) in pairs.items():
        passive = {s.name: s for s in A.structures}["passive"]
        assert (passive.share == 0.5) == (seed % 3 == 0)
        first = {s.name: {v.slots[0].role for v in s.variants} for s in A.structures}
        subjects_first = first.pop("passive") == {"det_patient"} and set().union(*first.values()) == {"det_agent"}
        if A.word_order in ("subject_verb_object", "verb_final"):
            assert subjects_first
        if seed % 3 == 0 and subjects_first:
            applies += 1
            shares = position_shares(A.sample(4000, seed=0))
            assert set(shares) == {"det_agent", "det_patient"}
            assert shares["det_agent"] == pytest.approx(0.5, abs=0.04)
    assert applies >= 4


def test_a_bad_drawn_file_names_itself():
    file = tomllib.loads(WORD_ORDERS.with_name("default.toml").read_text())
    file["structures"]["passive"]["share"] = 0.9
    with pytest.raises(GrammarError, match=r"^mine, seed 3: structures: shares sum to"):
        grammars_from(file, "mine, seed 3")


def test_shares_and_rates_stay_in_their_ranges_and_fill_them():
    drawn = [draw_full_grammar_pair(seed)[0].settings for seed in range(40)]
    for one in drawn:
        assert sum(one["shares"].values()) == pytest.approx(1, abs=1e-9)
        assert min(one["shares"].values()) >= 0.03
    for name, low, high in (("noun_bias", 0.5, 1.0), ("adjective_rate", 0.1, 0.6)):
        values, margin = [one[name] for one in drawn], 0.15 * (high - low)
        assert low <= min(values) <= low + margin
        assert high - margin <= max(values) <= high


def test_a_bad_seed_is_named():
    with pytest.raises(ValueError, match=r"^seed must be a non-negative integer"):
        draw_full_grammar_pair(-1)
