"""Metrics, methods to compare, result rows and the report."""
