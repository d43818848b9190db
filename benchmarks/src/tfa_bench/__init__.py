"""The benchmark: datasets and heads → records of rankings → numbers, tables, figures.

In: folders of photos with a protocol. Out: records that anyone can score again. May see: labels, but only after the
rankings are written.
"""
