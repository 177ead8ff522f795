"""How well probabilities rank the fraudulent accounts above the others: `python judge.py FILE.parquet answers.csv`."""

from __future__ import annotations

import csv
import json
import sys

import numpy as np
import pyarrow.parquet as parquet


def auc(score: np.ndarray, fraud: np.ndarray) -> float:
    """The chance that a fraudulent account has a higher score than another one (ties count half)."""
    _, rank, counts = np.unique(score, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of equal scores
    positive = int(fraud.sum())
    return float((middle[rank[fraud]].sum() - positive * (positive + 1) / 2) / (positive * (len(fraud) - positive)))


def main(predictions: str, answers: str) -> None:
    table = parquet.read_table(predictions, columns=["vertex", "probability_1"])
    with open(answers, encoding="utf-8") as file:
        truth = {row["account"]: row["fraud"] == "1" for row in csv.DictReader(file)}
    accounts = table.column("vertex").to_pylist()
    fraud = np.array([truth[account] for account in accounts])
    score = table.column("probability_1").to_numpy()
    # the last tenth of the numbers are the accounts that appeared after training
    new = np.array([account >= sorted(truth)[len(truth) * 10 // 11] for account in accounts])
    print(
        json.dumps(
            {"accounts": len(accounts), "auc": auc(score, fraud), "new_accounts_auc": auc(score[new], fraud[new])}
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
