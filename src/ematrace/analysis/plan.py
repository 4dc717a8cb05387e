"""The numbers of docs/analysis-plan.md that several analyses use, each with the section that fixes it."""

TEXTS = ("validation", "wikitext2", "c4")  # in this order, and any others after them: "Measure"
SEEDS = 5  # of published figures at the main size: "Sizes, budgets, rates"
LEAST_SEEDS = 3  # "2026-11-16, before any published seed: missing seeds, closing, trend"
MARGIN = 0.05  # nats, between seeds or between two versions of a model: "What would make us doubt our own result"
SAME_COST = 0.1  # nats: "2026-11-17, after the gradient's cost by units ...", number, share or size
BORDER = 0.1  # nats, where rates are swept first: "2026-11-16, after three arms at 130M ...", width or units
