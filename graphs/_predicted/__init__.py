"""What `python -m graphs.replay --predict` says of a pass: components, timeline, levers, excess."""
