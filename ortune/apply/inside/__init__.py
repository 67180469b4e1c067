"""What runs inside of other people's programs; standard library only."""
