"""The paper's premise about position 0: "det_agent in active sentences and det_patient in passive, a 50/50 split"."""

from __future__ import annotations

from dataclasses import replace

from ematrace.grammar.grammar import Grammar

PASSIVE = "passive"


def half_passives(grammar: Grammar) -> Grammar:
    """The grammar with half of its sentences passive; the shares of the other structures keep their ratios.

    >>> from ematrace.grammar import load_grammar, position_shares
    >>> grammar = half_passives(load_grammar("A"))
    >>> {role: round(share, 2) for role, share in position_shares(grammar.sample(4000, seed=0)).items()}
    {'det_agent': 0.5, 'det_patient': 0.5}
    """
    others = sum(s.share for s in grammar.structures if s.name != PASSIVE)
    if PASSIVE not in {s.name for s in grammar.structures} or others <= 0:
        raise ValueError(f"{grammar.file}: structures: half passives need the structure 'passive' and another one")
    structures = (replace(s, share=0.5 if s.name == PASSIVE else 0.5 * s.share / others) for s in grammar.structures)
    return replace(grammar, structures=tuple(structures))
