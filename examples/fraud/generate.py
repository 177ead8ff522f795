"""Make the tables of the fraud example: accounts and payments of three months, and the next month with new accounts.

    python generate.py [--accounts 4000] [--payments 60000] [--seed 0] [--out DIR]

Fraud shows in three places, each too weak alone:

- attributes: accounts of fraudsters are younger, have less money (or tell none), and were more often opened in `KY` or `VG`;
- structure: money of fraudsters gathers at a few collecting accounts, which pay it on to each other;
- payments: amounts just below a limit of 1,000, by wire, in foreign currency.

Written are `accounts.csv` (account, age, country, opened, balance, fraud) and `payments.csv` (payer, payee, time, amount,
channel, currency) to train on; `new_accounts.csv` (without the label) and `next.csv` of the next month; and
`answers.csv`, what became of all accounts in the end, to judge predictions by.
"""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

START = datetime(2024, 1, 1)
DAYS, NEXT = 91, 28
COUNTRIES = ("DE", "FR", "IT", "ES", "KY", "VG")
CHANNELS = ("card", "web", "cash", "wire")
CURRENCIES = ("EUR", "USD", "GBP", "CHF")


def make_accounts(count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Attributes and the label of accounts; a tenth are fraudsters."""
    fraud = rng.random(count) < 0.1
    shady = rng.random(count) < np.where(fraud, 0.35, 0.12)
    country = np.where(shady, rng.integers(4, 6, count), rng.integers(0, 4, count))
    age_of_account = rng.exponential(np.where(fraud, 500.0, 1200.0)).astype(int) + 5  # days before the start
    return {
        "age": np.clip(rng.normal(np.where(fraud, 36, 44), 13), 18, 90).astype(int),
        "country": np.array(COUNTRIES)[country],
        "opened": np.array([f"{(START - timedelta(days=int(days))).date()}" for days in age_of_account]),
        "balance": np.round(rng.lognormal(np.where(fraud, 6.6, 7.4), 1.0), 2),
        "hidden": rng.random(count) < np.where(fraud, 0.25, 0.08),  # a balance that is not told
        "fraud": fraud,
    }


def make_payments(
    fraud: np.ndarray, count: int, first_day: float, last_day: float, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Payments between accounts. Fraudsters also pay as everyone does; others may look like them by chance."""
    accounts = len(fraud)
    activity = rng.pareto(2.5, accounts) + 0.3
    payer = rng.choice(accounts, count, p=activity / activity.sum())
    near = (payer + rng.integers(1, 40, count)) % accounts  # people pay whom they know
    payee = np.where(rng.random(count) < 0.6, near, rng.integers(0, accounts, count))
    criminal = np.flatnonzero(fraud)
    collectors = criminal[: max(1, len(criminal) // 5)]
    dirty = fraud[payer] & (rng.random(count) < 0.5)
    payee = np.where(dirty, rng.choice(collectors, count), payee)
    # sound accounts too pay close to 1,000, by wire or abroad, now and then
    amount = np.where(dirty, rng.uniform(850, 1000, count), rng.lognormal(4.6, 1.2, count))
    channel = np.where(dirty & (rng.random(count) < 0.7), 3, rng.integers(0, 4, count))
    foreign = rng.random(count) < np.where(dirty, 0.6, 0.25)
    day = np.sort(rng.uniform(first_day, last_day, count))
    return {
        "payer": payer,
        "payee": np.where(payee == payer, (payee + 1) % accounts, payee),
        "time": np.array([f"{START + timedelta(seconds=int(86400 * value)):%Y-%m-%dT%H:%M:%S}" for value in day]),
        "amount": np.round(amount, 2),
        "channel": np.array(CHANNELS)[channel],
        "currency": np.array(CURRENCIES)[np.where(foreign, rng.integers(1, 4, count), 0)],
    }


def write_accounts(path: Path, table: dict[str, np.ndarray], rows: np.ndarray, label: bool) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("account,age,country,opened,balance" + (",fraud\n" if label else "\n"))
        for k in rows.tolist():
            balance = "" if table["hidden"][k] else table["balance"][k]
            fields = [f"A{k:05d}", table["age"][k], table["country"][k], table["opened"][k], balance]
            fields += [int(table["fraud"][k])] if label else []
            file.write(",".join(map(str, fields)) + "\n")


def write_payments(path: Path, table: dict[str, np.ndarray]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(",".join(table) + "\n")
        for payer, payee, *rest in zip(*(values.tolist() for values in table.values()), strict=True):
            file.write(f"A{payer:05d},A{payee:05d},{','.join(map(str, rest))}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accounts", type=int, default=4000)
    parser.add_argument("--payments", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path())
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    chosen.out.mkdir(parents=True, exist_ok=True)
    fresh = chosen.accounts // 10  # accounts that appear only in the next month
    accounts = make_accounts(chosen.accounts + fresh, rng)
    before = accounts["fraud"][: chosen.accounts]
    write_accounts(chosen.out / "accounts.csv", accounts, np.arange(chosen.accounts), label=True)
    write_payments(chosen.out / "payments.csv", make_payments(before, chosen.payments, 0, DAYS, rng))
    write_accounts(
        chosen.out / "new_accounts.csv", accounts, np.arange(chosen.accounts, len(accounts["fraud"])), label=False
    )
    later = make_payments(accounts["fraud"], chosen.payments // 3, DAYS, DAYS + NEXT, rng)
    write_payments(chosen.out / "next.csv", later)
    with open(chosen.out / "answers.csv", "w", encoding="utf-8") as file:
        file.write("account,fraud\n")
        file.writelines(f"A{k:05d},{int(fraud)}\n" for k, fraud in enumerate(accounts["fraud"].tolist()))


if __name__ == "__main__":
    main()
