"""Results of gates in the formats that CI services and people read."""
