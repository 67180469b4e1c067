"""The charts of reports, as specifications in Vega-Lite."""
