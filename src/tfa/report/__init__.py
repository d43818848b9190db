"""Report on the quality of a map: advice, expected recall, duplicates, hubs and decisions, as JSON and HTML.

Reads only the map; no encoder is loaded.
"""
