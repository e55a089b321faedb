"""Measures workloads on devices, predicts the degradation of co-location with bounds, and forecasts arrivals."""
