"""TFA: visual place recognition without training."""
