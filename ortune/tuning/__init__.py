"""The search: screening proposes candidates, racing eliminates the slower ones, confirmation proves the winner."""
