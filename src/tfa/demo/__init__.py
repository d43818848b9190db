"""A drawn town, mapped and recognised: the data of `tfa demo` and of the integration tests.

In: a seed. Out: photos, positions, a map and a page.
"""
