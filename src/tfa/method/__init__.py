"""The paper, in its order: vocabulary, residuals, spectrum, evidence, controllers, head.

In: tokens of a database, later of target photos. Out: one head that scores queries. May see: the database, or the
database and unlabelled target photos; never labels, files or images.
"""
