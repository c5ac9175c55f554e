"""Collections of trajectories: select, score, judge, rank, compare and view them."""
