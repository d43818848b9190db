"""The fault campaign: kills, cuts, damaged and hostile input, and checks that nothing is lost."""
