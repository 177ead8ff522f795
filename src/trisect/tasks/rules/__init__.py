"""Simple rules, measured on val and test, beside which a model is judged. A rule knows no model and no rank.

`links` has rules for pairs, which need no training; `linear` fits small linear models; `inputs` makes what they read of
features, degrees and neighbours; `fitted` measures them, for vertices and events.
"""
