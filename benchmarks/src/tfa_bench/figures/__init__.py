"""Figures of records: PNG files and one HTML report. `report.write_figures` draws them all."""
