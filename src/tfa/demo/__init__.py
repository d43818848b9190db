"""A drawn town, mapped and recognised: the data of `tfa demo` and of the integration tests."""
