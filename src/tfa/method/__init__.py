"""The method, in its order: vocabulary, residuals, spectrum, evidence, controllers, head.

In: tokens of a database, later of target photos. Out: one head that scores queries. Data used: the database, or the
database and unlabeled target photos; never labels, files or images.
"""
