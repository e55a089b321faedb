"""Learns: profiles, degradation, arrivals. Empty until its own work begins; the policy reads declared profiles."""
