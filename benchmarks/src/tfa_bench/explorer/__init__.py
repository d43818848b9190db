"""A judgement → the failure explorer: one page that needs no network, confidently wrong queries first.

In: a `Judgement`. Out: one HTML file, with a folder of small photos beside it where they are too many to hold inside.
May see: the photos that the judgement names.
"""
