"""Forecasts of arrivals per minute for many functions at once (paper, section VI-A)."""
