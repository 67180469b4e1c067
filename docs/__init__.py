"""Documentation, and the script that generates parts of it."""
