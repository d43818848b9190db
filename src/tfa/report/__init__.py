"""A map → a report: its decisions with their evidence, duplicates, hubs, advice.

In: a map. Out: a dictionary and one HTML page. May see: the map alone; no encoder is loaded.
"""
