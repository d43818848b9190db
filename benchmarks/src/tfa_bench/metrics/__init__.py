"""Rankings and positives → recall, its interval and the other measures. No torch."""
