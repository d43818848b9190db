"""What changes with the queries that are asked: a filter over a drive, and a calibration kept fresh."""
