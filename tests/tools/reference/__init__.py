"""Pages of the reference that are made from the program, so that they cannot be out of date.

`pages` reads what is declared: commands, settings, names, the chart's values. `live` asks running
programs what they serve and export. `python -m reference` writes both into
docs/reference; tests compare what is there with what this would write.
"""
