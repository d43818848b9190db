"""Evidence → decisions, with a reason in words for each.

In: evidence. Out: `Decisions` or `TargetDecisions`. May see: `database` takes no query at all, so leakage is a type
error; `target` sees unlabelled target photos too.
"""
