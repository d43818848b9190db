"""An encoder, a store, a benchmark head and a dataset layout for TFA, one module each, registered by entry points."""
