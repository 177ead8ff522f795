"""What simple means reach on the dynamic data sets of examples/accuracy, beside which a model's figure means something.

    python benchmarks/baselines.py --data-dir DIR

- amlsim: a logistic regression on log-degrees (events in and out), and with the numbers of distinct partners and the
  sums of amounts beside them; F1 of the fraudulent class at 0.5 and at the threshold that is best on validation.
- bitcoin-otc: every rating is positive.
- england-covid: tomorrow is today, on log(1 + cases).
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score

Arrays = Any


def fraud(data: Arrays, splits: int = 3) -> dict[str, dict[str, float]]:
    """Means over the first splits, for two sets of features."""
    source, target, amount = (data[name] for name in ("src", "dst", "amount"))
    labels = data["is_fraud"].astype(int)
    n = labels.size
    pairs = np.unique(source.astype(np.int64) * n + target)
    columns = [
        np.bincount(source, minlength=n),
        np.bincount(target, minlength=n),
        np.bincount(pairs // n, minlength=n),
        np.bincount(pairs % n, minlength=n),
        np.bincount(source, amount, n),
        np.bincount(target, amount, n),
    ]
    x = np.log1p(np.stack(columns, 1))
    x = (x - x.mean(0)) / x.std(0)
    return {"degrees": _fraud(x[:, :2], labels, data, splits), "and partners, amounts": _fraud(x, labels, data, splits)}


def _fraud(x: Arrays, labels: Arrays, data: Arrays, splits: int) -> dict[str, float]:
    scores: dict[str, list[float]] = {"f1 at 0.5": [], "f1 at best threshold": [], "auc": []}
    for split in range(splits):
        train, val, test = (data[f"{name}_masks"][split] for name in ("train", "val", "test"))
        model = LogisticRegression(max_iter=1000).fit(x[train], labels[train])
        chance = model.predict_proba(x)[:, 1]
        candidates = np.quantile(chance[val], np.linspace(0.5, 0.999, 200))
        threshold = max(candidates, key=lambda t: f1_score(labels[val], chance[val] > t))
        scores["f1 at 0.5"].append(f1_score(labels[test], chance[test] > 0.5))
        scores["f1 at best threshold"].append(f1_score(labels[test], chance[test] > threshold))
        scores["auc"].append(roc_auc_score(labels[test], chance[test]))
    return {name: statistics.fmean(values) for name, values in scores.items()}


def always_positive(data: Arrays, period: int = 1_200_000, first_test: int = 110) -> dict[str, float]:
    """The test events of examples/accuracy/bitcoin-otc-edges.yaml."""
    step = (data["time"] - data["time"][0]) // period
    positive = data["rating"][step >= first_test] > 0
    positives = float(positive.mean())
    return {"f1_micro": positives, "f1_macro": positives / (1 + positives), "auc": 0.5}


def last_value(data: Arrays, lags: int = 4, test: int = 12) -> dict[str, float]:
    """The test days of examples/accuracy/england-covid-regression.yaml."""
    values = np.log1p(data["y"])
    days = values.shape[0]
    error = values[days - test :] - values[days - test - 1 : -1]
    return {"mae": float(np.abs(error).mean()), "mse": float((error**2).mean()), "days": days - lags}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default=os.environ.get("TRISECT_DATA"), help="where the data sets lie")
    options = parser.parse_args()
    if options.data_dir is None:
        raise SystemExit("give --data-dir, or set TRISECT_DATA.")
    folder = Path(options.data_dir)

    def read(name: str) -> Arrays:
        return np.load(folder / f"{name}.npz", allow_pickle=False)

    for name, values in fraud(read("amlsim-20K_cycle200")).items():
        print(f"amlsim, logistic regression on {name}:", _text(values))
    print("bitcoin-otc, every rating positive:", _text(always_positive(read("bitcoin-otc"))))
    print("england-covid, last value:", _text(last_value(read("england-covid"))))


def _text(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


if __name__ == "__main__":
    main()
