"""Every stage timed against a floor that is measured in the same run."""
