"""The page's tables of supervised models and of the network by k, on made-up cells."""

from __future__ import annotations

from cells_support import make_file, make_table
from ematrace.ledger import load_claims
from ematrace.report.data import ReportData
from ematrace.report.parts import DataTable
from ematrace.report.sections.supervised import network_by_k, supervised_models
from ematrace.results import Metric, Row
from test_equivalence import cells


def rows_of(table: DataTable) -> list[list[str]]:
    return [[str(cell.content) for cell in row.cells] for row in table.body]


def data_of(table) -> ReportData:
    return ReportData(table, load_claims(), ())


def test_every_model_and_coding_is_a_row_below_the_papers():
    files = []
    for seed in range(3):
        for embedding in (64, "onehot"):
            rows = [Row({}, {"train_nats": Metric(0.01, "nats")})]
            for i, unseen in enumerate(("untrained", "zero")):
                share = 0.1 + 0.2 * i + 0.01 * seed
                role = {"role_transfer": Metric(share, "accuracy", 50)}
                rows += [
                    Row(
                        {"unseen": unseen},
                        {"within": Metric(1.0, "accuracy", 90), "transfer": Metric(0.8, "accuracy", 90)},
                    ),
                    Row({"unseen": unseen, "role": "verb_rel"}, role),
                ]
            factors = {"grammar": "half_passives", "model": "gru", "embedding": embedding, "word_dropout": 0.0}
            files.append(make_file(*rows, experiment="supervised_models", seed=seed, factors=factors))
    (table,) = supervised_models(data_of(make_table(*files)))
    paper, *body = rows_of(table)
    assert paper[0] == "the paper"
    assert [row[1:4] for row in body] == [
        ["64", "0.0", "untrained"],
        ["64", "0.0", "zero"],
        ["onehot", "0.0", "untrained"],
        ["onehot", "0.0", "zero"],
    ]
    assert body[0][4].startswith("1.000")
    assert body[0][7].startswith(".110 (")
    assert body[1][7].startswith(".310 (")
    assert (body[0][6], body[0][-1]) == ("–", "3")


def test_a_file_without_any_of_the_columns_is_a_row_of_dashes():
    factors = {"grammar": "half_passives", "model": "gru", "embedding": 64, "word_dropout": 0.0}
    rows = [Row({"unseen": "zero"}, {"train_nats": Metric(0.01, "nats")})]
    partial = make_file(*rows, experiment="supervised_models", factors=factors)
    (table,) = supervised_models(data_of(make_table(partial)))
    assert rows_of(table)[1][4:] == ["–"] * 6 + ["0"]
    lacking = make_file(*rows, experiment="supervised_models", factors={"grammar": "half_passives"})
    (table,) = supervised_models(data_of(make_table(lacking)))
    assert len(rows_of(table)) == 1


def test_the_network_by_k_has_a_row_for_each_k_and_metric():
    (table,) = network_by_k(data_of(cells()[0]))
    found = {row[0]: row for row in rows_of(table)}
    assert len(found) == 9
    assert found["k 2%, T"][5] == "different"
    assert found["k 8%, W"][5] == "same"
    assert found["k 2%, T"][1].startswith("\N{MINUS SIGN}.2") or found["k 2%, T"][1].startswith("\N{MINUS SIGN}.1")
    assert network_by_k(data_of(make_table())) == []
    assert supervised_models(data_of(make_table())) == []
