"""Rankings and spectra → numbers that decide between candidates. Pure statistics, without labels.

`rows` sums up rows of scores (mean, spread, z-scores); `support` judges coverage and reproducibility together;
`information` and `relation` judge how much of the database's behaviour survives on target photos.
"""
