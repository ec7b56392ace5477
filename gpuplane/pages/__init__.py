"""The pages' addresses, menu and error pages."""
