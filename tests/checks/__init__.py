"""What `make check` looks at beside ruff, mypy and import-linter. Each module is a command with an exit status."""
