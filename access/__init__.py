"""Who may do what: roles, teams, tokens, permission checks, and the errors every room answers with."""
