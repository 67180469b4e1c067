"""The transcript of a search in README.md: what the console prints for a recorded search.

python -m docs.transcript            write it into README.md
python -m docs.transcript --search   run the search again on this host first, and record it
"""
