"""An encoder, a benchmark head and a dataset layout, brought to TFA by entry points. One module each."""
