"""Mechanisms, accounting and certificate: numpy and privacy libraries only, never torch."""
