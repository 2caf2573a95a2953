"""Tools for auditing a cache: in this project's tests, in users' CI, in production."""
