"""Plans of several models on one host: how they share its cores, proven with all of them under load at once."""
