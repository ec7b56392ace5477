"""What exists: nodes, devices, topology, health, live streams."""
