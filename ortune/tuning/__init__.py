"""The search: screening finds promising candidates, racing eliminates slower ones, confirmation verifies the winner."""
