"""Pages that show who holds what: allocations, waiting pods, and the pages of a node, a claim and a scenario."""
