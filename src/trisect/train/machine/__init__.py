"""What this machine can do: rates, kinds of layers and ranks that share cores, measured for the planner."""
