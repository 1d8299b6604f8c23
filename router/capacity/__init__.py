"""What engines can do, learnt while they serve."""
