"""Learns: profiles measured on devices, the degradation that co-location costs, and how sure that is."""
