"""Geometric verification: match the patches of a query and its candidates, and rerank the candidates.

In: patch tokens and the head's ranking. Out: reranked candidates, or the decision not to rerank. Data used: the
database, or unlabeled target photos.
"""
